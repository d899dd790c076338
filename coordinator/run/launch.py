"""What `coordinator start` does between its flags and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from coordinator.access.broker_access import open_broker_access
from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import Event, Publish, Turned, publish_to
from coordinator.observe.readers.terminal import (
    Lines,
    Screen,
    closing_table,
    score_table,
)
from coordinator.observe.score_summary import overall, untrained
from coordinator.round.round import Agent
from coordinator.run.config_sources import ConfigSources
from coordinator.run.preparation import Prepared, find_name, prepare
from coordinator.run.rounds import Result
from coordinator.run.start import RunOptions, run
from coordinator.settings.config import Config, load, to_json
from coordinator.settings.services import Log
from coordinator.store.control import Stopped
from coordinator.store.run_folders import find_latest_run, list_runs
from coordinator.store.run_records import open_records
from federated.errors import ConfigError, UsageError
from federated.runtime import logs
from federated.runtime.console import Say
from federated.runtime.service_manager import Manager
from federated.runtime.units import human_bytes
from federated.wire import topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from models.cost import cost

__all__ = ["check_same", "report", "start_run"]

FIXED = (
    "name",
    "method",
    "train",
    "model",
    "data",
    "seed",
    "private.clip",
    "private.noise",
    "robust.clip",
    "robust.rule",
    *(f"simulate.{key}" for key in ("agents", "partition", "held", "speeds")),
)  # what makes a run this run: not to be changed when it is resumed


def start_run(
    sources: ConfigSources,
    runs: Path,
    *,
    resume: bool = False,
    or_resume: bool = False,
    live: bool,
    say: Say,
) -> dict[str, Any]:
    """Start or resume the run that the sources describe; return the result as plain values.

    resume: resume the run; or_resume: resume it if there is one of its name, else start it.
    live: show a table that is redrawn instead of lines.
    Raises UsageError for `or_resume` without a name.
    """
    config = sources.load_tables()
    if or_resume and not config.name:
        raise UsageError("--or-resume needs the name of a run: add --name NAME")
    resume = resume or (or_resume and config.name in list_runs(runs))
    config = resumed(config, sources, runs) if resume else sources.load()
    if not config.name:
        config = msgspec.structs.replace(config, name=find_name(config, runs))
    if config.log != Log():
        logs.configure(
            form=config.log.format, file=Path(config.log.file) if config.log.file else None
        )
    prepared = prepare(config, runs, resume=resume)
    try:
        result = _run(prepared, runs / config.name, live=live, say=say)
    except Stopped as why:
        resume = True  # there is something to go on with
        say(f"{why}; go on with: coordinator start --name {config.name} --resume")
        return {
            "run": config.name,
            "method": config.method_name,
            "rounds": prepared.store.rounds_done,
            "stopped": str(why),
        }
    finally:
        prepared.close(discard=not resume)
    show(result, live=live, say=say)
    return report(result, config)


def _run(prepared: Prepared, folder: Path, *, live: bool, say: Say) -> Result:
    """Run the rounds at a broker, and show them."""
    config, fleets = prepared.config, list[Fleet]()
    with (
        Manager() as manager,  # before the broker, which must not inherit it
        open_broker_access(config.broker, folder, say) as gate,
        linked(config, gate.address) as link,
        watching(config, fleets, live=live, say=say) as read,
    ):
        say(
            f"run '{config.name}': {config.method_name} on {config.data.name}, up "
            f"to {config.rounds} rounds, kept in {folder}"
        )
        return run(
            prepared,
            link,
            publish_to(read, manager_reader(manager, fleets)),
            lambda fleet: bind(fleet, fleets, manager),
            RunOptions(gate=gate),
        )


def bind(fleet: Fleet, fleets: list[Fleet], manager: Manager) -> None:
    """The fleet exists: readers may show it, and the service manager learns that the coordinator is
    ready.
    """
    fleets.append(fleet)
    manager.ready("waiting for agents")


def manager_reader(manager: Manager, fleets: Sequence[Fleet]) -> Publish:
    """A reader that tells the service manager that the coordinator's loop turns, and how the round
    stands.
    """

    def standing() -> str:
        fleet = fleets[0]
        entries = fleet.tasks
        number = next((entry.task.round for entry in entries), 0)
        waited = (
            f"round {number}: {sum(not entry.open for entry in entries)} of "
            f"{len(entries)} settled; "
            if number
            else ""
        )
        return (
            f"run {fleet.run.run}: {waited}{len(fleet.ready())} of {len(fleet.agents)} agents ready"
        )

    def read(event: Event) -> None:
        if isinstance(event, Turned) and fleets:
            manager.alive(standing)

    return read


def resumed(wanted: Config, sources: ConfigSources, runs: Path) -> Config:
    """The configuration of a stored run, with the changes that the sources make. Raises StoreError,
    ConfigError.
    """
    name = wanted.name or find_latest_run(runs)
    records = open_records(runs, name)
    try:
        before = load(None, {}, (), base=records.read_facts().config)
    finally:
        records.close()
    after = sources.load(base=to_json(before))
    check_same(before, after)
    return after


def check_same(before: Config, after: Config) -> None:
    """ConfigError unless a run that goes on is still the same run."""
    for key in FIXED:
        have, want = (attrgetter(key)(config) for config in (before, after))
        if have != want:
            had, asked = ("the defaults" if value == {} else repr(value) for value in (have, want))
            raise ConfigError(
                f"run '{before.name}' cannot go on with another {key}: it has {had}, "
                f"asked for is {asked}"
            )


@contextmanager
def linked(config: Config, address: str) -> Iterator[Link]:
    """The coordinator's link. Its will takes the run's card away: a run whose coordinator is gone
    is not to be joined.
    """
    link = open_link(address, f"coordinator-{config.name}", (topics.run(config.name), b""))
    try:
        yield link
    finally:
        link.close()


@contextmanager
def watching(config: Config, fleets: Sequence[Fleet], *, live: bool, say: Say) -> Iterator[Publish]:
    """The reader that shows the run: a table that is redrawn (live), or lines. fleets: the run's
    fleet, once there is one.
    """
    if not live:
        yield Lines(say).read
        return

    def agents() -> Sequence[Agent]:
        return sorted(fleets[0].agents.values(), key=lambda a: a.name) if fleets else ()

    with Screen(Console(), agents, f"{config.name}") as screen:
        yield screen.read


def show(result: Result, *, live: bool, say: Say) -> None:
    """The closing tables."""
    console = Console(width=None if live else 110)
    rows = [
        (agent, s.unowned.name, s.plain.name, cost(s).parameters, cost(s).macs)
        for agent, s in sorted(result.history.assigned.items())
    ]
    with console.capture() as capture:
        console.print(closing_table(rows, result.scores))
        console.print(score_table(result.scores))
    say(capture.get().rstrip())
    if names := untrained(result.scores):
        say(
            f"not trained: {', '.join(names)}; no device trained "
            f"{'it' if len(names) == 1 else 'them'} as a whole, only parts inside other "
            "submodels"
        )
    say(
        f"{result.rounds} rounds, {result.seconds:.1f} s, "
        f"{human_bytes(result.bytes_up)} up, {human_bytes(result.bytes_down)} down"
    )
    if result.epsilon:
        say(
            f"epsilon {result.epsilon:.4g} at the run's delta, of the device of which "
            "the model tells most"
        )


def report(result: Result, config: Config) -> dict[str, Any]:
    """The result as plain values. accuracy: of the largest evaluated submodel; worst_accuracy: of
    the worst one, which may be one of the untrained: the evaluated submodels that no update
    trained.
    """
    scores = overall(result.scores)
    return {
        "run": config.name,
        "method": config.method_name,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 3),
        "accuracy": scores[-1].accuracy if scores else None,
        "worst_accuracy": min((s.accuracy for s in scores), default=None),
        "untrained": untrained(result.scores),
        "scores": [msgspec.to_builtins(s) for s in result.scores],
        "agents": [
            {
                "id": agent,
                "submodel": s.unowned.name,
                "parameters": cost(s).parameters,
                "macs": cost(s).macs,
            }
            for agent, s in sorted(result.history.assigned.items())
        ],
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "target_reached": result.reached,
        **(
            {"epsilon": result.epsilon, "delta": config.private.delta}
            if config.private.noise
            else {}
        ),
    }
