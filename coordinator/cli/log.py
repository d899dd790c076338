"""`coordinator log [RUN]`: show the events of a run, filtered by agent or round."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, print_result

__all__ = ["log"]


@click.command()
@click.argument("run", required=False)
@click.option("--agent", metavar="NAME", help="show only events of this agent")
@click.option("--round", "number", type=int, metavar="N", help="show only events of this round")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="show new events until ctrl-C or the end of the run",
)
@RUNS
@FORMAT
def log(
    run: str | None, agent: str | None, number: int | None, follow: bool, runs: Path, form: str
) -> None:
    """Show the events of RUN.

    RUN defaults to the run in progress, or else to the latest run. Events are rounds,
    updates, rejections, and agents that joined or left.
    """
    with print_errors("log"):
        from coordinator.store import run_lock
        from coordinator.store.run_folders import find_current_run, make_missing_error
        from coordinator.views import run_log

        folder = runs / (run or find_current_run(runs))
        if not folder.is_dir():
            raise make_missing_error(folder)

        chosen = run_log.match_events(agent, number)
        if missing := run_log.explain_missing(folder, agent, number):
            if not (follow and run_lock.is_held(folder)):
                raise UsageError(missing)
            click.echo(f"{missing}; waiting for one", err=True)
        empty = True
        for event in (
            run_log.follow_events(folder, chosen, until=lambda: not run_lock.is_held(folder))
            if follow
            else run_log.read_events(folder, chosen)
        ):
            empty = False
            print_result(event, form, run_log.format_event)
        if empty:
            both = agent is not None and number is not None
            about = f" of agent '{agent}' in round {number}" if both else ""
            click.echo(f"run '{folder.name}': no event{about}", err=True)
