"""Leases: which agents a round waits for, and which are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.update_reception import Intake
from coordinator.http_transfers.transfer_urls import TransferUrls
from coordinator.observe.events import Event, LinkChanged, LoopTurned, Rejected
from coordinator.round.task_state import Spare
from federated.task import Task
from federated.wire import messages, topics
from federated.wire.chunks import split
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import (
    Folding,
    ScriptedAgent,
    collect,
    listen,
    run_turns,
    task,
    weights,
)
from tests.support.scripted_coordinator import CARD, SMALL


def test_an_update_that_waits_for_a_slot_may_exceed_its_lease(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, Intake(slots=1), clock=clock
    )
    fleet.endpoint.announce()
    peers = [ScriptedAgent(memory, name) for name in "abc"]
    listen(fleet)
    steps = 0

    def turn(timeout: float) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            data = memoryview(bytes(3000))
            for peer in peers[:2]:  # c says nothing at all
                peer.say(messages.Offer(split(data, 2000, "t"), "r", 1, 1, "train", SMALL.name))
        for peer in peers:
            peer.beat("train")
        clock.now += 15.0
        original(0)
        for _ in range(5):
            original(0)
        if clock.now == 75.0:
            judged.update({state.task.agent: state.late for state in fleet.tasks})

    judged: dict[str, bool] = {}
    original = fleet.turn
    fleet.turn = turn  # type: ignore[method-assign]
    assert collect(fleet, [task(name) for name in "abc"], limit=180.0) == []
    assert judged == {"a": True, "b": False, "c": True}, "a has a slot and sends nothing"


def test_an_agent_that_leaves_is_replaced_by_a_spare(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peers = {name: ScriptedAgent(memory, name) for name in "abc"}
    listen(fleet)
    folding = Folding()
    leave = lambda: peers["a"].say(messages.Status("a", "s1", False), topics.status("r", "a"))  # noqa: E731
    run_turns(
        fleet,
        [
            leave,
            lambda: peers["b"].send(task("b"), weights()),
            lambda: None,
            lambda: peers["c"].send(task("c"), weights()),
        ],
    )
    collect(fleet, [task("a"), task("b")], folding, wanted=2, spares=(Spare("c"),))
    assert [update.agent for update in folding.updates] == ["b", "c"]
    assert folding.asked == ["c"]
    assert next(type(m) for m in peers["c"].heard()) is Task


def test_an_agent_without_progress_past_its_lease_is_replaced_but_may_still_deliver(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    peers = {name: ScriptedAgent(memory, name) for name in "abc"}
    listen(fleet)
    folding = Folding()

    def later(step: int) -> None:
        """Let fifteen seconds pass, in which a takes a step and b makes no progress."""
        clock.now += 15.0
        peers["a"].say(
            messages.Heartbeat("a", "s1", "train", 1, step=step), topics.heartbeat("r", "a")
        )
        peers["b"].say(
            messages.Heartbeat("b", "s1", "train", 1, step=7), topics.heartbeat("r", "b")
        )
        peers["c"].beat()

    steps: list[Callable[[], None]] = [lambda step=step: later(step) for step in range(6)]  # type: ignore[misc]
    run_turns(
        fleet,
        [
            *steps,
            lambda: peers["b"].send(task("b"), weights()),
            lambda: peers["a"].send(task("a"), weights()),
        ],
    )
    collect(fleet, [task("a"), task("b")], folding, wanted=2, spares=(Spare("c"),))
    assert sorted(update.agent for update in folding.updates) == ["a", "b"]
    assert folding.asked == ["c"], "for b alone"


def test_two_replacements_selected_together_can_both_deliver(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    peers = {name: ScriptedAgent(memory, name) for name in "abcd"}
    listen(fleet)
    folding = Folding()

    def later() -> None:
        clock.now += 15.0
        for peer in peers.values():
            peer.beat()

    send: list[Callable[[], None]] = [
        lambda name=name: peers[name].send(task(name), weights()) for name in "cd"
    ]  # type: ignore[misc]
    run_turns(fleet, [*[later] * 6, *send])
    collect(fleet, [task("a"), task("b")], folding, wanted=2, spares=(Spare("c"), Spare("d")))
    assert folding.asked == ["c", "d"]
    assert sorted(update.agent for update in folding.updates) == ["c", "d"]


def test_an_agent_that_is_silent_until_two_deadlines_sits_out_a_round(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    """Its lease may be longer than the configured deadline."""
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)

    def wait() -> None:
        peers["b"].beat("train")
        clock.now += 6.0

    turn = fleet.turn
    for number in (1, 2):
        tasks = [replace(task(name), round=number) for name in "ab"]
        run_turns(fleet, [partial(peers["a"].send, tasks[0], weights()), wait])
        assert len(collect(fleet, tasks, limit=5.0)) == 1
        fleet.turn = turn  # type: ignore[method-assign]
        if number == 1:
            assert [agent.name for agent in fleet.list_candidates("train", 2)] == ["a", "b"]
    assert [agent.name for agent in fleet.list_candidates("train", 3)] == ["a"]
    assert [agent.name for agent in fleet.list_candidates("train", 4)] == ["a", "b"]


def test_an_outage_of_the_broker_makes_no_agent_late(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    """However long it lasts, and although no heartbeat arrives meanwhile."""
    link = MemoryLink(memory, "coordinator")
    fleet = MessageLoop(link, CARD, tmp_path, clock=RunClock(clock))
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "abc"}
    listen(fleet)
    folding = Folding()

    def later() -> None:
        clock.now += 50.0

    send: list[Callable[[], None]] = [
        lambda name=name: peers[name].send(task(name), weights()) for name in "ab"
    ]  # type: ignore[misc]
    run_turns(fleet, [link.drop, *[later] * 20, link.restore, *send])
    collect(fleet, [task("a"), task("b")], folding, wanted=2, spares=(Spare("c"),))
    assert [update.agent for update in folding.updates] == ["a", "b"]
    assert folding.asked == [], "no spare replaced them"
    assert fleet.clock() < 50.0
    assert not any(agent.suspect for agent in fleet.agents.values())


@dataclass(frozen=True)
class LostStore(TransferUrls):
    """Transfers through a store that is away from 50 s to 1,000 s."""

    clock: Clock = field(default_factory=Clock)

    @property
    def lost(self) -> str:
        return "timed out" if 50.0 <= self.clock.now < 1000.0 else ""


def test_an_outage_of_the_store_makes_no_agent_late(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    """However long it lasts. When it ends, each agent is asked again and has a new lease. The
    coordinator shows meanwhile that it is alive, and takes many heartbeats in a long time for no
    flood.
    """
    urls = LostStore("https://store", b"secret", above=1 << 30, clock=clock)
    published: list[Event] = []
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"),
        CARD,
        tmp_path,
        Intake(urls=urls),
        publish=published.append,
        clock=RunClock(clock),
    )
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "abc"}
    listen(fleet)
    folding, asked = Folding(), list[Task]()

    def later() -> None:
        clock.now += 50.0
        for name in "abc" + "a" * 12:
            peers[name].beat("train")
        asked.extend(found for found in peers["a"].heard() if isinstance(found, Task))

    send: list[Callable[[], None]] = [
        lambda name=name: peers[name].send(task(name), weights()) for name in "ab"
    ]  # type: ignore[misc]
    run_turns(fleet, [*[later] * 21, *send])
    collect(fleet, [task("a"), task("b")], folding, wanted=2, spares=(Spare("c"),))
    assert [update.agent for update in folding.updates] == ["a", "b"]
    assert folding.asked == [], "no spare replaced them"
    assert fleet.clock() == 100.0, "more than a lease of 60 s"
    assert not any(agent.suspect for agent in fleet.agents.values())
    assert len(asked) == 2
    changes = [event for event in published if isinstance(event, LinkChanged)]
    assert changes == [LinkChanged("timed out", "store"), LinkChanged("", "store")]
    during = published[published.index(changes[0]) : published.index(changes[1])]
    assert sum(isinstance(event, LoopTurned) for event in during) >= 18, "in each of its 18 steps"
    assert not any(isinstance(event, Rejected) for event in published)
