"""What comes after its round: told again, carried, and kept until the round is done with."""

from __future__ import annotations

from dataclasses import replace

from coordinator.collection import unchecked
from coordinator.fleet import Fleet
from federated.task import Task
from federated.wire import messages, topics
from federated.wire.memory import MemoryBroker
from tests.support.peer import Peer, listen, task, turning, weights


def test_a_task_of_an_earlier_round_is_told_again_to_an_agent_that_comes_back(fleet: Fleet, memory: MemoryBroker) -> None:
    peers = {name: Peer(memory, name) for name in "ab"}
    listen(fleet)
    first = fleet.collect(
        [task("a"), task("b")], quorum=1, deadline=600, check=unchecked, size=lambda task: 10**6, folder="round-1", carry=lambda settled: True
    )
    turning(fleet, [lambda: peers["b"].send(task("b"), weights())])
    assert [update.agent for _, update in first] == ["b"]
    assert [key[0] for key in fleet.late] == ["a"]
    assert [agent.name for agent in fleet.free()] == ["b"]
    assert messages.Abort not in [type(m) for m in peers["a"].heard()]
    peers["a"].say(messages.Status("a", "s2", True), topics.status("r", "a"))
    listen(fleet)
    assert [m for m in peers["a"].heard() if isinstance(m, Task)] == [task("a")]
    again = replace(task("b"), round=2)
    second = fleet.collect([again], quorum=1, deadline=600, check=unchecked, size=lambda task: 10**6, folder="round-2", carry=lambda settled: True)
    turning(fleet, [lambda: peers["a"].send(task("a"), weights()), lambda: peers["b"].send(again, weights(), "t2")])
    assert [(update.agent, update.round) for _, update in second] == [("b", 2), ("a", 1)]
    assert fleet.late == {}


def test_an_update_that_a_closed_round_carried_waits_until_the_round_is_done_with(fleet: Fleet, memory: MemoryBroker) -> None:
    """Were it refused, its agent would drop it."""
    peer = Peer(memory, "a")
    listen(fleet)
    settled = {("a", 1): "carried", ("b", 1): "late"}
    Peer(memory, "b")
    listen(fleet)
    round = fleet.collect(
        [task("a"), task("b")],
        quorum=1,
        deadline=600,
        check=unchecked,
        size=lambda task: 10**6,
        folder="round-1",
        settled=settled,
        carry=lambda s: True,
    )
    original, offered = fleet.turn, []

    def turn(timeout: float) -> None:
        original(0)
        if not offered:
            offered.append(True)
            peer.send(task("a"), weights())
            for _ in range(20):
                original(0)

    fleet.turn = turn  # type: ignore[method-assign]
    assert list(round) == []
    fleet.turn = original  # type: ignore[method-assign]
    assert [m for m in peer.heard() if isinstance(m, messages.Receipt | messages.Grant)] == [messages.Grant("t", b"", False)]
    peer.send(task("a"), weights())
    listen(fleet)
    assert messages.Receipt("t", True, "") in peer.heard()
