"""A coordinator that is killed at instants that a test chooses, and restarted until its run is
over.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.event_readers.terminal_output import LinePrinter
from coordinator.observe.events import Publish
from coordinator.round.round_step import step
from coordinator.run import runner
from coordinator.run.rounds import Result
from coordinator.run.run_preparation import prepare
from coordinator.store.journal import Journal, pack
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.memory_federation import Member, make_config, run_members

__all__ = ["Fuse", "Killed", "run_with_restarts"]


class Killed(BaseException):
    """Stand-in for a kill of the coordinator's process."""


class Fuse:
    """Kills the process at given calls of a function. after: kill it after the call instead of
    before.
    """

    def __init__(self, *deaths: int, after: bool = False) -> None:
        self.deaths, self.after, self.calls = deaths, after, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*args: Any, **named: Any) -> Any:
            self.calls += 1
            now = self.calls in self.deaths
            if now and not self.after:
                raise Killed
            result = function(*args, **named)
            if now:
                raise Killed
            return result

        return fused


def check_replay(folder: Path, died: MessageLoop) -> None:
    """Check that a replay of the journal restores the value at the kill. This finds defects earlier
    than the result of a run does.
    """
    found = Journal(folder).read(died.driver.checkpoint)
    if found is None:  # it died before it wrote anything, or between a checkpoint and its journal
        return
    base, events = found
    round = structs.replace(base.round, rules=died.round.rules)
    before = round
    for event in events:
        before, (round, _) = round, step(round, event)
    expected = pack(died.round)
    assert expected in (pack(round), pack(before)), (
        "the replay is neither what died, nor one event ahead of it"
    )


def run_with_restarts(
    folder: Path,
    members: Sequence[Member],
    settings: Mapping[str, Any],
    *,
    read: Publish | None = None,
    durable: bool = True,
) -> tuple[Result, int]:
    """Restart a coordinator after each `Killed` until its run ends, with members that survive.
    Return the result and the number of kills.
    """
    broker, deaths, config = MemoryBroker(), 0, make_config(settings, len(members))
    fleets = list[MessageLoop]()
    read = read or LinePrinter(lambda line: None).read
    with run_members(members, broker, folder):
        while True:
            prepared, link = (
                prepare(config, folder / "runs", resume=deaths > 0),
                MemoryLink(broker, "coordinator"),
            )
            try:
                result = runner.run(
                    prepared, link, read, fleets.append, runner.RunOptions(durable=durable)
                )
                break
            except Killed as death:
                deaths += 1
                replaying = any(
                    frame.name == "replay" for frame in traceback.extract_tb(death.__traceback__)
                )
                if durable and not replaying:  # who dies in a replay is somewhere within it
                    check_replay(folder / "runs" / prepared.config.name, fleets[-1])
            finally:
                prepared.close()
                link.close()
    return result, deaths
