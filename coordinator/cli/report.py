"""`coordinator report [RUN]`: write one HTML page on a run, to show to others."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.cli.options import RUNS, check_new, print_errors, write_new
from federated.errors import ConfigError, explain_os_errors, require_extra
from federated.runtime import atomic_files
from federated.runtime.console import FORMAT, print_result, show_progress

if TYPE_CHECKING:
    from coordinator.simulate.device_gains import Comparison

__all__ = ["report"]


@click.command()
@click.argument("run", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="new file to write to  [default: results/RUN/report.html, which is overwritten]",
)
@click.option(
    "--compare",
    is_flag=True,
    help="train each device's submodel alone and on all data, and compare; for runs whose data "
    "this machine has, such as simulations and the demo",
)
@RUNS
@FORMAT
def report(run: str | None, out: Path | None, compare: bool, runs: Path, form: str) -> None:
    """Write a report on RUN as a web page.

    One HTML file shows what each device gained, accuracy by submodel, who trained which submodel
    and why, bytes and time, releases, and the command that repeats the run. RUN defaults to the run
    in progress, or else to the latest run.
    """
    with print_errors("report"):
        with require_extra("coordinator report", "simulate"):
            from coordinator.report.run_report import build_report
            from coordinator.store.run_database_reader import open_records
            from coordinator.store.run_folders import find_current_run

        name = run or find_current_run(runs)
        open_records(runs, name).close()  # an unknown run leaves no file
        file = out or Path("results") / name / "report.html"
        if out is None:
            with explain_os_errors(ConfigError, f"cannot write {file}"):
                file.parent.mkdir(parents=True, exist_ok=True)
                atomic_files.check_writable(file)
        else:
            check_new(file)
        found = compare_run_with_bar(name, runs) if compare else None
        text = build_report(name, runs, found)
        if out is None:
            with explain_os_errors(ConfigError, f"cannot write {file}"):
                atomic_files.write(file, text.encode())
        else:
            write_new(file, text)
        made = {"run": name, "file": str(file), "compared": compare}
        print_result(made, form, lambda made: f"wrote {made['file']}")


def compare_run_with_bar(name: str, runs: Path) -> list[Comparison]:
    """Train for the comparison, with a progress bar."""
    from coordinator.simulate.device_gains import compare_run
    from coordinator.store.run_store import Store

    done = count(1)
    with (
        closing(Store.open(runs, name, read_only=True)) as store,
        show_progress("training alone and on all data") as show,
    ):
        return compare_run(store, lambda planned: show(next(done), planned))
