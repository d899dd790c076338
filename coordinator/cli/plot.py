"""`coordinator plot [RUN]`: plot accuracy, traffic, times and assigned submodels of a run."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.errors import require_extra
from federated.runtime.console import FORMAT, print_result, show_progress

__all__ = ["plot"]


@click.command()
@click.argument("run", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder to write the plots to  [default: results/RUN]",
)
@RUNS
@FORMAT
def plot(run: str | None, out: Path | None, runs: Path, form: str) -> None:
    """Plot accuracy, traffic, times and assignment of RUN.

    The plots show the accuracy of each submodel, the bytes sent, the time of each device, and the
    submodel of each device by round. RUN defaults to the run in progress, or else to the latest
    run.
    """
    with print_errors("plot"):
        with require_extra("coordinator plot", "simulate"):
            from coordinator.views.run_plots import plot_run, render_plots

        with show_progress("plotting"):
            made = plot_run(run, runs, out)
        print_result(made, form, render_plots)
