"""The command `coordinator export`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from coordinator.cli.options import RUNS, plainly
from federated.runtime.console import FORMAT, speaker

__all__ = ["export"]


@click.command()
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="where the release is written",
)
@click.option(
    "--submodel",
    "wanted",
    multiple=True,
    metavar="NAME",
    help="only this one; may be repeated  [default: all that were calibrated]",
)
@click.option(
    "--int8/--no-int8",
    default=True,
    show_default=True,
    help="write each as int8 as well, where that can be done",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples (.npz: x, and y if known) to measure with, where the run's data are not "
    "here",
)
@RUNS
@FORMAT
def export(
    run: str,
    out: Path,
    wanted: tuple[str, ...],
    int8: bool,
    inputs: Path | None,
    runs: Path,
    form: str,
) -> None:
    """Export the submodels of RUN as ONNX, in float32 and int8, with a model card.

    Each is compared with PyTorch on real inputs. `coordinator release` brings them to the agents.
    """
    with plainly("export"):
        from coordinator.release.export_run import ExportRequest, export_run

        request = ExportRequest(run, runs, out, wanted, inputs, int8)
        result = export_run(request, speaker(form))
        if form == "json":
            click.echo(json.dumps(result))
