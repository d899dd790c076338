"""The command `coordinator log`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, as_json, plainly
from federated.errors import UsageError
from federated.runtime.console import FORMAT

__all__ = ["log"]


@click.command()
@click.argument("run", required=False)
@click.option("--agent", metavar="NAME", help="only what is about this agent")
@click.option("--round", "number", type=int, metavar="N", help="only of this round")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="go on with what comes, until ctrl-C or the end of the run's coordinator",
)
@RUNS
@FORMAT
def log(
    run: str | None, agent: str | None, number: int | None, follow: bool, runs: Path, form: str
) -> None:
    """Show the events of RUN (default: the one in progress, else the latest). Events are rounds,
    updates, refusals, and agents that joined or left.
    """
    with plainly("log"):
        from coordinator.store import run_lock
        from coordinator.store.run_folders import find_current_run, missing_run
        from coordinator.views import run_log

        folder = runs / (run or find_current_run(runs))
        if not folder.is_dir():
            raise missing_run(folder)

        chosen, going = run_log.about(agent, number), follow and run_lock.is_held(folder)
        if missed := run_log.missed(folder, agent, number):
            if not going:
                raise UsageError(missed)
            click.echo(f"{missed}; waiting for one", err=True)
        empty = True
        for event in (
            run_log.follow(folder, chosen, until=lambda: not run_lock.is_held(folder))
            if follow
            else run_log.past(folder, chosen)
        ):
            empty = False
            click.echo(as_json(event) if form == "json" else run_log.told(event))
        if empty:
            both = (
                f" of agent '{agent}' in round {number}"
                if agent is not None and number is not None
                else ""
            )
            click.echo(f"run '{folder.name}': no event{both}", err=True)
