"""Who is here, what of them is heard, and what the broker holds for them."""

from __future__ import annotations

import time

import msgspec
import pytest

from coordinator.fleet import Fleet
from coordinator.shelf import SLOTS
from federated.errors import StoreError
from federated.wire import envelope, messages, topics
from federated.wire.memory import MemoryBroker, MemoryLink
from tests.support.clock import Clock
from tests.support.peer import Peer, listen, task, weights


def test_an_agent_is_ready_once_it_is_here_and_measured(fleet: Fleet, memory: MemoryBroker) -> None:
    peer = Peer(memory, "a")
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a"]
    peer.say(messages.Status("a", "s1", False), topics.status("r", "a"))
    listen(fleet)
    assert fleet.ready() == []


def test_a_busy_coordinator_hears_what_was_said_before_it_calls_anyone_silent(fleet: Fleet, memory: MemoryBroker, clock: Clock) -> None:
    peers = [Peer(memory, name) for name in "abc"]
    listen(fleet)
    for peer in peers:
        peer.beat()
    clock.now = 100.0  # it computed for a while
    fleet.turn(0)
    assert len(fleet.ready()) == 3
    listen(fleet)
    assert len(fleet.ready()) == 3
    clock.now = 200.0
    listen(fleet)
    assert fleet.ready() == []
    peers[0].beat()
    listen(fleet)
    assert [a.name for a in fleet.ready()] == ["a"]


def test_weights_for_which_there_is_no_room_are_an_error_of_the_store_and_leave_nothing(fleet: Fleet, memory: MemoryBroker) -> None:
    before, part = dict(memory.retained), fleet.shelf.folder / "r0-w1.weights"
    part.symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"weights of 7 bytes could not be written to .*: No space left on device"):
        fleet.shelf.put("r0", "w1", memoryview(b"weights"))
    assert not part.is_symlink()
    assert memory.retained == before


def test_weights_are_published_again_to_a_broker_that_forgot(fleet: Fleet, memory: MemoryBroker) -> None:
    fleet.shelf.put("r0", "w1", memoryview(b"weights"))
    known = dict(memory.retained)
    assert len(known) == 3, "the card, a chunk and a manifest"
    memory.retained.clear()
    link = fleet.link
    assert isinstance(link, MemoryLink)
    link.drop()
    link.mend()
    listen(fleet)
    assert memory.retained == known
    fleet.dismiss("over")
    assert [envelope.decode(payload) for payload in memory.retained.values()] == [messages.Goodbye("over")]


def test_a_device_that_only_tries_the_way_is_answered_and_is_no_agent(fleet: Fleet, memory: MemoryBroker) -> None:
    link = MemoryLink(memory, "doctor")
    link.subscribe(topics.command("r", "pi"))
    link.publish(topics.say("r", "pi"), envelope.encode(messages.Echo("pi", 12.5)))
    listen(fleet)
    heard = link.receive(0)
    assert heard is not None
    answer = envelope.decode(heard.payload)
    assert isinstance(answer, messages.Echo)
    assert (answer.agent, answer.sent) == ("pi", 12.5)
    assert abs(answer.time - time.time()) < 60
    assert not fleet.agents


def test_what_is_refused_is_counted_by_kind(fleet: Fleet, memory: MemoryBroker) -> None:
    peer = Peer(memory, "a")
    peer.link.publish(topics.say("r", "a"), b"nothing that was ever packed")
    peer.link.publish(topics.say("r", "a"), msgspec.msgpack.encode({"v": 99, "kind": "status", "body": {}}))
    peer.say(messages.Grant("t", b"", True))
    peer.send(task("a"), weights())
    listen(fleet)
    assert dict(fleet.refused) == {"malformed": 1, "protocol": 1, "message": 1, "unasked": 1}


def test_slots_of_weights_are_reused_but_never_while_their_version_is_published(fleet: Fleet, memory: MemoryBroker) -> None:
    """Some brokers keep memory for each topic that ever was: versions without end must not mean topics without end."""
    kept = fleet.shelf.put("r0", "w1", memoryview(b"kept"))[0]
    slots = set[str]()
    for number in range(1, 3 * SLOTS):
        version = f"r{number}"
        slot = fleet.shelf.put(version, "w1", memoryview(b"weights"))[0]
        assert fleet.shelf.put(version, "w2", memoryview(b"others"))[0] == slot
        fleet.shelf.clear(keep={"r0", version})
        slots.add(slot)
    assert kept not in slots
    assert len(slots) == SLOTS - 1
    assert fleet.shelf.put("r0", "w1", memoryview(b"kept"))[0] == kept
    published = [topic for topic in memory.retained if "/model/" in topic]
    assert len(published) == 2 * 3, "a chunk and a manifest each of r0's w1 and of the last version's w1 and w2"


def test_more_versions_than_slots_have_more_slots(fleet: Fleet) -> None:
    slots = [fleet.shelf.put(f"r{number}", "w1", memoryview(b"weights"))[0] for number in range(SLOTS + 2)]
    assert len(set(slots)) == SLOTS + 2
