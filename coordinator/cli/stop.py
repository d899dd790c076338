"""`coordinator stop [RUN]`: stop a run after its current round, or at once with --now."""

from __future__ import annotations

import time
from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_answer, print_errors
from federated.errors import StoreError
from federated.runtime.console import FORMAT, FiniteRange

__all__ = ["stop"]


@click.command()
@click.argument("run", required=False)
@click.option(
    "--now", is_flag=True, help="stop mid-round; `coordinator start --resume` continues the round"
)
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="time to wait until the run has stopped  [default: do not wait]",
)
@RUNS
@FORMAT
def stop(run: str | None, now: bool, wait: float, runs: Path, form: str) -> None:
    """Stop RUN after its current round.

    RUN defaults to the run in progress. `coordinator start --resume` resumes it.
    """
    with print_errors("stop"):
        from coordinator.store import control_requests, run_lock
        from coordinator.store.run_folders import find_current_run

        folder = runs / (run or find_current_run(runs))
        control_requests.send_request(folder, "stop now" if now else "stop")
        until = time.monotonic() + wait
        while run_lock.is_held(folder) and time.monotonic() < until:
            time.sleep(0.2)
        if wait and run_lock.is_held(folder):
            raise StoreError(f"run '{folder.name}' is still stopping after {wait:g} s")
        soon = "stops at once" if now else "stops after the current round"
        print_answer(folder, "has stopped" if wait else soon, form)
