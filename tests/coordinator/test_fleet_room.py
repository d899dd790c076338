"""A round whose spool is full: what came is given to the fold at once, so that it can leave, and the next ones find room."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from coordinator.collection import unchecked
from coordinator.fleet import RELIEF, Fleet
from federated.wire.memory import MemoryBroker
from tests.support.clock import Clock
from tests.support.peer import Peer, listen, task, turning, weights


def test_nobody_waits_for_an_earlier_name_that_finds_no_room(fleet: Fleet, memory: MemoryBroker, clock: Clock) -> None:
    """The update of b would wait for that of a, and a for the room that b takes."""
    a, b = Peer(memory, "a"), Peer(memory, "b")
    listen(fleet)
    tries: list[float] = []

    def fill() -> None:
        fleet.inbox.reserve = 2**62

    def wait(seconds: float = RELIEF) -> None:
        clock.now += seconds

    def relieve() -> bool:
        tries.append(clock.now)
        if len(tries) == 2:
            fleet.inbox.reserve = 0
        return len(tries) == 2

    collection = fleet.collect([task(name) for name in "ab"], quorum=2, deadline=600, check=unchecked, size=lambda task: 10**6, relieve=relieve)
    send = [partial(peer.send, task(peer.name), weights(), transfer=peer.name) for peer in (a, b)]
    # b is in and waits for a, which finds no room: it is tried twice, and no more often than every RELIEF seconds
    turning(fleet, [send[1], fill, send[0], partial(wait, 0.5), wait, partial(wait, 0.5), send[0]])
    assert [update.agent for _, update in collection] == ["b", "a"]
    assert len(tries) == 2
    assert tries[1] - tries[0] >= RELIEF


def test_an_agent_that_finds_no_room_is_waited_for_longer_than_its_lease(fleet: Fleet, memory: MemoryBroker, clock: Clock) -> None:
    a = Peer(memory, "a")
    listen(fleet)
    fleet.inbox.reserve = 2**62
    collection = fleet.collect([replace(task("a"), lease=10.0)], quorum=1, deadline=600, check=unchecked, size=lambda task: 10**6)

    def empty() -> None:
        assert not fleet.collection.of("a")[0].late
        fleet.inbox.reserve = 0

    def later() -> None:
        clock.now += 15.0
        a.beat("train")

    send = partial(a.send, task("a"), weights())
    turning(fleet, [send, later, later, empty, partial(later), send])
    assert [update.agent for _, update in collection] == ["a"]
