"""A full spool: received updates are folded at once, so that they can be removed, and agents wait
for room.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from coordinator.fleet.message_loop import MessageLoop
from coordinator.round.collector_interface import Snapshot
from coordinator.round.next_round_actions import RELIEF_PAUSE
from coordinator.store.journal import Base, Journal
from federated.wire.links.memory import MemoryBroker
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import (
    Folding,
    ScriptedAgent,
    collect,
    list_tasks,
    listen,
    run_turns,
    task,
    weights,
)


def test_an_update_without_room_does_not_block_the_fold_of_later_names(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock, tmp_path: Path
) -> None:
    """The update of b would wait for that of a, and a for the room that b occupies."""
    fleet.driver.journal = Journal(tmp_path)
    fleet.driver.journal.begin(Base("", fleet.round))
    a, b = ScriptedAgent(memory, "a"), ScriptedAgent(memory, "b")
    listen(fleet)
    tries: list[float] = []

    def fill() -> None:
        fleet.inbox.reserve = 2**62

    def wait(seconds: float = RELIEF_PAUSE) -> None:
        clock.now += seconds

    class Snapshots(Folding):
        def settle(self) -> None:
            return None

        def snapshot(self) -> Snapshot | None:
            tries.append(clock.now)
            if len(tries) < 2:
                return None
            fleet.inbox.reserve = 0
            return Snapshot("total-000001-000001.safetensors", (), "")

    send = [partial(peer.send, task(peer.name), weights(), transfer=peer.name) for peer in (a, b)]
    # b is in and waits for a, which finds no room: it is tried twice, and no more often than every
    # RELIEF_PAUSE seconds
    run_turns(
        fleet, [send[1], fill, send[0], partial(wait, 0.5), wait, partial(wait, 0.5), send[0]]
    )
    folded = collect(fleet, [task("a"), task("b")], Snapshots())
    assert [update.agent for update in folded] == ["b", "a"]
    fleet.driver.journal.close()
    assert len(tries) == 2
    assert tries[1] - tries[0] >= RELIEF_PAUSE


def test_an_agent_without_room_may_exceed_its_lease(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    a = ScriptedAgent(memory, "a")
    listen(fleet)
    fleet.inbox.reserve = 2**62

    def empty() -> None:
        assert not list_tasks(fleet)["a"].late
        fleet.inbox.reserve = 0

    def later() -> None:
        clock.now += 45.0
        a.beat("train")

    send = partial(a.send, task("a"), weights())
    run_turns(fleet, [send, later, later, empty, partial(later), send])
    assert [update.agent for update in collect(fleet, [task("a")])] == ["a"]
