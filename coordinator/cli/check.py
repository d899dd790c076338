"""`coordinator check RUN`: find damaged files of a run, and discard them with --repair."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.errors import StoreError
from federated.runtime.console import FORMAT, print_result, show_progress

__all__ = ["check"]


@click.command()
@click.argument("run")
@click.option(
    "--repair", is_flag=True, help="discard damaged files, so that the run can be resumed"
)
@RUNS
@FORMAT
def check(run: str, repair: bool, runs: Path, form: str) -> None:
    """Check the files of RUN against their digests.

    The exit code is 7 if a file is damaged and was not repaired.
    """
    with print_errors("check"):
        from coordinator.views.run_damage_check import check_run, render_check

        with show_progress("checking the files"):
            made = check_run(run, runs, repair=repair)
        print_result(made, form, render_check)
        left = [one["file"] for one in made["damaged"] if not one["repaired"]]
        if left:
            raise StoreError(f"run '{run}' is damaged: {', '.join(left)}")
