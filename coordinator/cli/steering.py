"""The commands that look at runs and steer them: `coordinator status`, `runs`, `log`, `pause`,
`stop`. They read and write the run's folder alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from coordinator.cli.options import RUNS, plainly
from federated.errors import StoreError, UsageError
from federated.runtime.console import FORMAT

__all__ = ["COMMANDS"]

LOOK = 2.0  # seconds between two drawings of `status --watch`


def as_json(found: Any) -> str:
    """On one line; numbers that JSON does not have are null."""
    return msgspec.json.encode(found).decode()


@click.command()
@click.argument("run", required=False)
@click.option(
    "--watch", is_flag=True, help="look again every two seconds, until ctrl-C or the end of the run"
)
@RUNS
@FORMAT
def status(run: str | None, watch: bool, runs: Path, form: str) -> None:
    """Say what RUN does now (default: the one under way, else the latest): round, tasks, agents,
    scores, what went wrong; and if anyone runs it.
    """
    with plainly("status"):
        from coordinator.cli import status as found

        while True:
            made = found.status(run, runs)
            if watch and form == "text":
                click.clear()
            click.echo(as_json(made) if form == "json" else found.text(made))
            if not watch or made["state"] != "running":
                return
            run = made["run"]
            time.sleep(LOOK)


@click.command("runs")
@RUNS
@FORMAT
def list_runs(runs: Path, form: str) -> None:
    """List all runs: method, model, rounds, accuracy, and whether they run, are over, or can be
    resumed.
    """
    with plainly("runs"):
        from coordinator.cli.status import listed, listing_text

        found = listed(runs)
        click.echo(as_json(found) if form == "json" else listing_text(found, runs))


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
    """Show the events of RUN (default: the one under way, else the latest): rounds, updates,
    refusals, agents that came and went.
    """
    with plainly("log"):
        from coordinator.cli import log as eventlog
        from coordinator.cli.status import present
        from coordinator.store import run_lock
        from coordinator.store.runs import absent

        folder = runs / (run or present(runs))
        if not folder.is_dir():
            raise absent(folder)

        chosen, going = eventlog.about(agent, number), follow and run_lock.held(folder)
        if missed := eventlog.missed(folder, agent, number):
            if not going:
                raise UsageError(missed)
            click.echo(f"{missed}; waiting for one", err=True)
        empty = True
        for event in (
            eventlog.follow(folder, chosen, until=lambda: not run_lock.held(folder))
            if follow
            else eventlog.past(folder, chosen)
        ):
            empty = False
            click.echo(as_json(event) if form == "json" else eventlog.told(event))
        if empty:
            both = (
                f" of agent '{agent}' in round {number}"
                if agent is not None and number is not None
                else ""
            )
            click.echo(f"run '{folder.name}': no event{both}", err=True)


@click.command()
@click.argument("run", required=False)
@click.option("--off", is_flag=True, help="go on")
@RUNS
@FORMAT
def pause(run: str | None, off: bool, runs: Path, form: str) -> None:
    """Let RUN (default: the one under way) finish its present round and begin no other; with --off,
    let it go on.
    """
    with plainly("pause"):
        from coordinator.cli.status import present
        from coordinator.store import control

        folder = runs / (run or present(runs))
        before = control.wish(folder, "go on" if off else "pause").paused
        if off:
            answer(folder, "goes on" if before else "was not paused, and goes on", form)
        else:
            answer(
                folder,
                "was asked to pause before: it begins no other round"
                if before
                else "pauses after the present round",
                form,
            )


@click.command()
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="inside the round, which is gone on with at --resume")
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
    """Let the coordinator of RUN (default: the one under way) finish the present round and stop.
    `coordinator start --resume` goes on.
    """
    with plainly("stop"):
        from coordinator.cli.status import present
        from coordinator.store import control, run_lock

        folder = runs / (run or present(runs))
        control.wish(folder, "stop now" if now else "stop")
        until = time.monotonic() + wait
        while run_lock.held(folder) and time.monotonic() < until:
            time.sleep(0.2)
        if wait and run_lock.held(folder):
            raise StoreError(f"run '{folder.name}' has not stopped after {wait:g} s; it will")
        answer(
            folder,
            "has stopped" if wait else "stops at once" if now else "stops after the present round",
            form,
        )


def answer(folder: Path, what: str, form: str) -> None:
    click.echo(
        as_json({"run": folder.name, "asked": what})
        if form == "json"
        else f"run '{folder.name}' {what}"
    )


COMMANDS = (list_runs, log, pause, status, stop)
