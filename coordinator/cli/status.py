"""`coordinator status [RUN]`: show the round, tasks, agents, scores and errors of a run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.runtime.console import FORMAT, print_result

__all__ = ["status"]

INTERVAL = 2.0  # seconds between two updates of --watch


@click.command()
@click.argument("run", required=False)
@click.option(
    "--watch", is_flag=True, help="update every two seconds until ctrl-C or the end of the run"
)
@RUNS
@FORMAT
def status(run: str | None, watch: bool, runs: Path, form: str) -> None:
    """Show the state of RUN.

    RUN defaults to the run in progress, or else to the latest run. The output lists the round,
    tasks, agents, scores and errors, and whether a coordinator is running.
    """
    with print_errors("status"):
        from coordinator.views import run_status

        while True:
            made = run_status.describe_status(run, runs)
            if watch and form == "text":
                click.clear()
            print_result(made, form, run_status.render_status)
            if not watch or made["state"] != "running":
                return
            run = made["run"]
            time.sleep(INTERVAL)
