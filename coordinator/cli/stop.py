"""The command `coordinator stop`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from coordinator.cli.options import RUNS, plainly, print_answer
from federated.errors import StoreError
from federated.runtime.console import FORMAT

__all__ = ["stop"]


@click.command()
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="stop within the round; --resume continues it")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="until it has stopped, at most so long  [default: do not wait]",
)
@RUNS
@FORMAT
def stop(run: str | None, now: bool, wait: float, runs: Path, form: str) -> None:
    """Stop RUN (default: the one in progress) after its present round. `coordinator start --resume`
    resumes it.
    """
    with plainly("stop"):
        from coordinator.store import control, run_lock
        from coordinator.store.run_folders import find_current_run

        folder = runs / (run or find_current_run(runs))
        control.send_request(folder, "stop now" if now else "stop")
        until = time.monotonic() + wait
        while run_lock.is_held(folder) and time.monotonic() < until:
            time.sleep(0.2)
        if wait and run_lock.is_held(folder):
            raise StoreError(f"run '{folder.name}' has not stopped after {wait:g} s; it will")
        print_answer(
            folder,
            "has stopped" if wait else "stops at once" if now else "stops after the present round",
            form,
        )
