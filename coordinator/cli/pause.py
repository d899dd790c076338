"""The command `coordinator pause`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, plainly, print_answer
from federated.runtime.console import FORMAT

__all__ = ["pause"]


@click.command()
@click.argument("run", required=False)
@click.option("--off", is_flag=True, help="continue a paused run")
@RUNS
@FORMAT
def pause(run: str | None, off: bool, runs: Path, form: str) -> None:
    """Pause RUN (default: the one in progress) after its present round. With --off, continue it."""
    with plainly("pause"):
        from coordinator.store import control
        from coordinator.store.run_folders import find_current_run

        folder = runs / (run or find_current_run(runs))
        before = control.send_request(folder, "resume" if off else "pause").paused
        if off:
            print_answer(folder, "goes on" if before else "was not paused, and goes on", form)
        else:
            print_answer(
                folder,
                "was asked to pause before: it begins no other round"
                if before
                else "pauses after the present round",
                form,
            )
