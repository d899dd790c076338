"""`coordinator pause [RUN]`: pause a run after its current round, or resume it with --off."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_answer, print_errors
from federated.runtime.console import FORMAT

__all__ = ["pause"]


@click.command()
@click.argument("run", required=False)
@click.option("--off", is_flag=True, help="resume the paused run")
@RUNS
@FORMAT
def pause(run: str | None, off: bool, runs: Path, form: str) -> None:
    """Pause RUN after its current round, or resume it with --off.

    RUN defaults to the run in progress.
    """
    with print_errors("pause"):
        from coordinator.store import control_requests
        from coordinator.store.run_folders import find_current_run

        folder = runs / (run or find_current_run(runs))
        before = control_requests.send_request(folder, "resume" if off else "pause").paused
        if off:
            answer = "resumes" if before else "was not paused"
        elif before:
            answer = "was paused before: it starts no further round"
        else:
            answer = "pauses after the current round"
        print_answer(folder, answer, form)
