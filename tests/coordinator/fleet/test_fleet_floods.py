"""Agents that flood the coordinator with messages: time passes for the others as usual."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.access.broker_setup import SUSPENDED, BrokerAccess
from coordinator.fleet import round_event_loop
from coordinator.fleet.flood_guard import (
    BEATS_AT_ONCE,
    MESSAGES_AT_ONCE,
    REFUSALS_AT_ONCE,
    SIZE,
)
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_reception import Intake
from coordinator.observe.events import Event, Rejected
from coordinator.round.task_state import Planned, Spare
from coordinator.store.journal import Base, Journal
from federated.device.transfers import AHEAD
from federated.wire import envelope, messages, topics
from federated.wire.delivery_queue import FLOODED, DeliveryQueue
from federated.wire.link import CHUNK, Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import (
    PROFILE,
    Folding,
    ScriptedAgent,
    begin_phase,
    list_tasks,
    listen,
    task,
)
from tests.support.scripted_coordinator import CARD, SMALL


@pytest.mark.parametrize("flood", [False, True])
def test_a_flood_of_messages_delays_no_lease(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, flood: bool
) -> None:
    """The flooding agent always has fifty messages queued, and each turn takes 20 ms."""
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "abc"}
    listen(fleet)
    folding = Folding()
    tasks = [Planned(task(name), 20.0) for name in "ab"]
    fleet.driver.begin(begin_phase(fleet, tasks, wanted=2, spares=(Spare("c", 1.0),)), folding)
    while clock.now < 65.0:
        if flood:
            while fleet.link.backlog < 50:
                peers["a"].beat("train")
        elif clock.now % 15 < 0.02:
            peers["a"].beat("train")
        if clock.now % 15 < 0.02:
            peers["c"].beat()
        clock.now += 0.02
        fleet.turn(0)
    assert folding.asked == ["c"], "b was silent for 45 seconds"
    assert list_tasks(fleet)["a"].late, "a shows no progress"


def test_a_journal_that_grows_large_begins_a_new_segment(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_event_loop, "LARGE", 20_000)
    journal = Journal(tmp_path)
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, Intake(journal=journal), clock=clock
    )
    journal.begin(Base("", fleet.round))
    peer = ScriptedAgent(memory, "a")
    for number in range(100):
        peer.say(replace(PROFILE, agent="a", cpus=number / 10 + 0.1), topics.profile("r", "a"))
        fleet.turn(0)
        clock.now += 1.0
        fleet.turn(0)
    assert len(list(tmp_path.glob("journal-*.log"))) == 1
    assert journal.size < 30_000
    found = journal.read("")
    assert found is not None
    assert len(found[1]) < 100
    journal.close()


def test_unrequested_offers_and_failures_are_not_recorded(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    journal = Journal(tmp_path)
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, Intake(journal=journal), clock=clock
    )
    journal.begin(Base("", fleet.round))
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    before = journal.records
    for number in range(50):
        peer.say(messages.Failure("r", number, 1, "train", "w1", "no"))
        peer.say(
            messages.Offer(messages.Manifest("t", 1, 1, "0" * 64), "r", number, 1, "train", "w1")
        )
    listen(fleet)
    assert journal.records == before
    journal.close()


def test_an_agent_that_sends_too_many_invalid_messages_is_ignored_for_a_while(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    found: list[Event] = []
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock, publish=found.append
    )
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)
    for _ in range(2000):
        peers["a"].link.publish(topics.say("r", "a"), b"noise")
        fleet.turn(0)
    rejected = [event for event in found if isinstance(event, Rejected)]
    assert len(rejected) < 600
    assert [event.agent for event in rejected if event.kind == "flood"] == ["a"]
    peers["b"].say(messages.Status("b", "s1", True, "on battery"), topics.status("r", "b"))
    peers["a"].say(messages.Status("a", "s1", True, "on battery"), topics.status("r", "a"))
    listen(fleet)
    assert (fleet.agents["a"].paused, fleet.agents["b"].paused) == ("", "on battery")
    clock.now += 10.0
    peers["a"].say(messages.Status("a", "s1", True, "on battery"), topics.status("r", "a"))
    listen(fleet)
    assert fleet.agents["a"].paused == "on battery"


UPLOAD = topics.upload("r", "a", "t")
CHUNKS = 900  # of an update that an agent may send
MANIFEST = messages.Manifest("t", CHUNKS << 10, 1 << 10, "0" * 64)
OPEN = messages.Offer(MANIFEST, "r", 1, 1, "train", SMALL.name)
Flood = Callable[[int], tuple[messages.Message, str]]
# valid messages of an agent with one open task: the number of a message -> message, topic
VALID: dict[str, Flood] = {
    "echoes": lambda n: (messages.Echo("a", float(n)), topics.say("r", "a")),
    "processes": lambda n: (messages.Status("a", f"s{n}", True), topics.status("r", "a")),
    "profiles": lambda n: (
        replace(PROFILE, agent="a", cpus=n / 10 + 0.1),
        topics.profile("r", "a"),
    ),
    "repeated offers": lambda n: (OPEN, topics.say("r", "a")),
    "other offers of a task": lambda n: (
        replace(OPEN, manifest=replace(OPEN.manifest, transfer=f"t{n}")),
        topics.say("r", "a"),
    ),
    "failures of unknown tasks": lambda n: (
        messages.Failure("r", n + 2, 1, "train", "w1", "no"),
        topics.say("r", "a"),
    ),
    "repeated chunks": lambda n: (make_chunk(0), topics.chunk(UPLOAD, 0)),
    "chunks on another topic": lambda n: (make_chunk(n % CHUNKS), topics.say("r", "a")),
    "statuses on the topic of a chunk": lambda n: (
        messages.Status("a", f"s{n}", True),
        topics.chunk(UPLOAD, n % (CHUNKS - 1) + 1),
    ),
    "statuses on the topic of heartbeats": lambda n: (
        messages.Status("a", f"s{n}", True),
        topics.heartbeat("r", "a"),
    ),
}


def make_chunk(index: int) -> messages.Chunk:
    data = bytes(1 << 10)
    return messages.Chunk("t", index, CHUNKS, CHUNKS << 10, zlib.crc32(data), data)


@pytest.mark.parametrize("kind", list(VALID))
def test_valid_messages_have_a_limit_too(
    memory: MemoryBroker,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)
    fleet.driver.begin(begin_phase(fleet, [task("a"), task("b")]), Folding())
    peers["a"].say(OPEN)
    peers["a"].say(make_chunk(0), topics.chunk(UPLOAD, 0))
    listen(fleet)
    decoded, decode = Counter[bytes](), envelope.decode

    def count(payload: bytes) -> object:
        decoded["messages"] += 1
        return decode(payload)

    monkeypatch.setattr("federated.wire.envelope.decode", count)
    for number in range(1000):
        peers["a"].say(*VALID[kind](number))
        fleet.turn(0)
    assert 100 < decoded["messages"] <= MESSAGES_AT_ONCE + BEATS_AT_ONCE
    peers["b"].say(messages.Status("b", "s1", True, "on battery"), topics.status("r", "b"))
    listen(fleet)
    assert fleet.agents["b"].paused == "on battery"


def test_large_messages_cost_more(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    sizes, decode = list[int](), envelope.decode

    def count(payload: bytes) -> object:
        sizes.append(len(payload))
        return decode(payload)

    monkeypatch.setattr("federated.wire.envelope.decode", count)
    link = MemoryLink(memory, "a")
    for _ in range(100):
        link.publish(topics.say("r", "a"), bytes(1 << 20))
        fleet.turn(0)
    assert 0 < sum(sizes) <= 2 * MESSAGES_AT_ONCE * SIZE


def test_no_message_of_an_agent_whose_link_fails_again_and_again_is_dropped(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    """For ten minutes the link fails every two seconds, with three finished updates to offer."""
    found: list[Event] = []
    fleet = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock, publish=found.append
    )
    fleet.endpoint.announce()
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    fleet.driver.begin(begin_phase(fleet, [task("a")]), Folding())
    for _ in range(300):
        clock.now += 2.0
        peer.say(messages.Status("a", "s1", False), topics.status("r", "a"))
        peer.say(replace(PROFILE, agent="a"), topics.profile("r", "a"))
        peer.say(messages.Status("a", "s1", True), topics.status("r", "a"))
        for attempt in (1, 2, 3):
            peer.say(replace(OPEN, attempt=attempt))
        peer.beat("send")
        for _ in range(8):
            fleet.turn(0)
    assert not [event for event in found if isinstance(event, Rejected) and event.kind == "flood"]


def test_answers_to_tasks_have_no_limit(memory: MemoryBroker, tmp_path: Path, clock: Clock) -> None:
    """Simulated agents answer hundreds of tasks while no time passes."""
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    for number in range(1, int(MESSAGES_AT_ONCE) + 100):
        asked = replace(task("a"), round=number)
        fleet.driver.begin(begin_phase(fleet, [asked], round=number), Folding())
        peer.say(replace(OPEN, round=number))
        peer.say(messages.Failure("r", number, 1, "train", SMALL.name, "no"))
        fleet.turn(0)
        fleet.turn(0)
        assert list_tasks(fleet)["a"].outcome == "failed: no"
        clock.now += 1e-3
        fleet.finish_phase()


def test_a_repeated_chunk_is_no_progress(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    fleet.driver.begin(begin_phase(fleet, [task("a")]), Folding())
    peer.say(OPEN)
    for index, expected in ((0, 1.0), (0, 1.0), (1, 3.0)):
        clock.now += 1.0
        peer.say(make_chunk(index), topics.chunk(UPLOAD, index))
        listen(fleet)
        assert list_tasks(fleet)["a"].sent == expected


def test_chunks_that_nobody_asked_for_are_not_decoded(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock)
    fleet.endpoint.announce()
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    monkeypatch.setattr("federated.wire.envelope.decode", lambda payload: pytest.fail("decoded"))
    peer.link.publish(topics.chunk(topics.upload("r", "a", "t"), 0), b"noise")
    listen(fleet)


def test_an_agent_that_floods_is_suspended(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    fleet, broker_access = (
        MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock),
        BrokerAccess(""),
    )
    fleet.follow(broker_access=broker_access)
    fleet.endpoint.announce()
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)
    for number in range(3000):
        peers["a"].link.publish(topics.chunk(topics.upload("r", "a", f"t{number}"), 0), b"noise")
        fleet.turn(0)
    assert broker_access.list_suspended() == {"a"}
    fleet.turn(0)
    assert [agent.name for agent in fleet.list_ready()] == ["b"]
    assert fleet.agents["a"].absence == f"refused: {SUSPENDED}", "no round waits for it"
    peers["a"].beat()
    listen(fleet)
    assert not fleet.agents["a"].online, "its messages are not even decoded"
    broker_access.suspended.clear()
    peers["a"].beat()
    listen(fleet)
    assert fleet.agents["a"].online
    assert not fleet.agents["a"].refused


@pytest.mark.parametrize("place", ["say", "up/t/c/0"])
def test_an_agent_that_floods_with_large_messages_is_suspended_sooner(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, place: str
) -> None:
    """Forty megabytes per second held up the other agents, in too few messages to be a flood."""
    fleet, broker_access = (
        MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock),
        BrokerAccess(""),
    )
    fleet.follow(broker_access=broker_access)
    fleet.endpoint.announce()
    peer, payload = ScriptedAgent(memory, "a"), bytes(1 << 20)
    listen(fleet)
    for _ in range(40 * 10):
        clock.now += 1 / 40
        peer.link.publish(f"fl/v1/r/agent/a/{place}", payload)
        fleet.turn(0)
    assert broker_access.list_suspended() == {"a"}


def test_an_agent_whose_uploads_are_aborted_every_second_is_not_suspended(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    fleet, broker_access = (
        MessageLoop(MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock),
        BrokerAccess(""),
    )
    fleet.follow(broker_access=broker_access)
    fleet.endpoint.announce()
    peer, payload = ScriptedAgent(memory, "a"), bytes(CHUNK)
    listen(fleet)
    for _ in range(100):
        clock.now += 1.05
        for index in range(AHEAD):
            peer.link.publish(topics.chunk(UPLOAD, index), payload)
            fleet.turn(0)
    assert broker_access.list_suspended() == frozenset()


def test_an_agent_that_floods_is_suspended_while_the_fleet_waits_for_the_broker(
    memory: MemoryBroker, tmp_path: Path, clock: Clock
) -> None:
    """A message of the coordinator waits until the broker has delivered the flood before it."""
    link = MemoryLink(memory, "coordinator")
    link._deliveries = DeliveryQueue(share=10, find_sender=topics.find_sender)
    fleet, broker_access = MessageLoop(link, CARD, tmp_path, clock=clock), BrokerAccess("")
    fleet.follow(broker_access=broker_access)
    fleet.endpoint.announce()
    for name in "ab":
        ScriptedAgent(memory, name)
    listen(fleet)
    for _ in range(FLOODED + 10):
        link._deliveries.put(Delivery(topics.say("r", "a"), b"noise"))
    assert broker_access.list_suspended() == {"a"}, "as the thread asks that watches the broker"
    assert link._deliveries.blocks(topics.say("r", "a")), "the broker may hold thousands more"
    assert not link._deliveries.blocks(topics.say("r", "b"))
    listen(fleet)
    assert [agent.name for agent in fleet.list_ready()] == ["b"]


def test_few_invalid_messages_are_answered(fleet: MessageLoop, memory: MemoryBroker) -> None:
    """An answer waits for the broker, which a flood keeps busy."""
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    peer.heard()
    for _ in range(150):
        peer.link.publish(topics.say("r", "a"), b"noise")
    listen(fleet)
    assert len(peer.heard()) == REFUSALS_AT_ONCE
