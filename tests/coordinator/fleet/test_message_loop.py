"""The connected agents, the messages that the coordinator handles, and what the broker retains."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from coordinator.fleet.coordinator_takeover import FENCE
from coordinator.fleet.message_loop import RECONNECTION, MessageLoop
from coordinator.fleet.published_weights import FIRST, REPEAT, WeightSlots
from coordinator.http_transfers.transfer_urls import TransferUrls
from coordinator.observe.events import AgentJoined, AgentLeft, Event, LinkChanged, Rejected
from coordinator.round.agent_handlers import SILENCE
from federated.errors import Refused, StoreError
from federated.safe_text import MAX_TEXT
from federated.task import Task, Update
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.retained_blobs import Download, RetainedBlob
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import (
    Folding,
    ScriptedAgent,
    begin_phase,
    list_tasks,
    listen,
    task,
    weights,
)
from tests.support.scripted_coordinator import CARD


def test_an_agent_is_ready_once_it_is_online_and_measured(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    assert [a.name for a in fleet.list_ready()] == ["a"]
    peer.say(messages.Status("a", "s1", False), topics.status("r", "a"))
    listen(fleet)
    assert fleet.list_ready() == []


def test_a_busy_coordinator_handles_waiting_messages_before_it_calls_an_agent_silent(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    peers = [ScriptedAgent(memory, name) for name in "abc"]
    listen(fleet)
    for peer in peers:
        peer.beat()
    clock.now = 100.0  # it computed for a while
    fleet.turn(0)
    assert len(fleet.list_ready()) == 3
    listen(fleet)
    assert len(fleet.list_ready()) == 3
    clock.now = 200.0
    listen(fleet)
    assert fleet.list_ready() == []
    peers[0].beat()
    listen(fleet)
    assert [a.name for a in fleet.list_ready()] == ["a"]


def test_weights_that_do_not_fit_the_disk_are_a_store_error_and_leave_no_file(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    before, part = dict(memory.retained), fleet.endpoint.slots.folder / "r0-w1.weights"
    part.symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"weights of 7 bytes .*: No space left on device"):
        fleet.endpoint.slots.put("r0", "w1", (b"weights",), "r0")
    assert not part.is_symlink()
    assert memory.retained == before


def test_weights_are_published_again_to_a_broker_that_lost_them(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    fleet.endpoint.slots.put("r0", "w1", (b"weights",), "r0")
    fleet.endpoint.slots.send(0.0)
    known = dict(memory.retained)
    assert len(known) == 3, "the card, a chunk and a manifest"
    memory.retained.clear()
    link = fleet.link
    assert isinstance(link, MemoryLink)
    link.drop()
    link.restore()
    listen(fleet)
    clock.now += FENCE
    listen(fleet)
    assert memory.retained == known
    fleet.dismiss("over")
    assert [envelope.decode(payload) for payload in memory.retained.values()] == [
        messages.Goodbye("over")
    ]


def test_a_connection_test_is_answered_but_adds_no_agent(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
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


def test_a_lost_broker_is_published_once_until_it_returns(
    fleet: MessageLoop, memory: MemoryBroker, published: list[Event]
) -> None:
    assert isinstance(fleet.link, MemoryLink)
    for _ in range(2):
        fleet.link.drop()
        listen(fleet)
        fleet.link._down = False  # as a link that fails to reconnect
    fleet.link.restore()
    listen(fleet)
    changes = [event for event in published if isinstance(event, LinkChanged)]
    assert changes == [LinkChanged("dropped"), LinkChanged("")]


def test_rejected_messages_are_published_by_kind(
    fleet: MessageLoop, memory: MemoryBroker, published: list[Event]
) -> None:
    peer = ScriptedAgent(memory, "a")
    peer.link.publish(topics.say("r", "a"), b"nothing that was ever packed")
    peer.link.publish(
        topics.say("r", "a"), msgspec.msgpack.encode({"v": 99, "kind": "status", "body": {}})
    )
    peer.say(messages.Grant("t", b"", True))
    peer.send(task("a"), weights())
    listen(fleet)
    rejected = [event for event in published if isinstance(event, Rejected)]
    assert [event.kind for event in rejected] == ["malformed", "protocol", "message", "unasked"]
    assert {event.agent for event in rejected} == {"a"}
    assert [bool(event.topic) for event in rejected] == [True, True, True, False]


def test_an_agent_whose_version_is_too_new_is_told_to_leave(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peer, newer = ScriptedAgent(memory, "a"), envelope.PROTOCOL + 1
    listen(fleet)
    peer.heard()
    unread = msgspec.msgpack.encode({"v": newer, "kind": "profile", "body": {}})
    for topic in (topics.profile("r", "a"), topics.say("r", "a")):
        peer.link.publish(topic, unread)
    listen(fleet)
    refusals = peer.heard()
    reason = f"protocol {newer}, this side {envelope.OLDEST} to {envelope.PROTOCOL}: upgrade"
    assert all(isinstance(one, messages.Refusal) and reason in one.reason for one in refusals)
    assert [one.about for one in refusals if isinstance(one, messages.Refusal)] == [
        messages.JOINING,
        topics.say("r", "a"),
    ]


def test_agents_that_join_restart_and_fall_silent_are_published(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock, published: list[Event]
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    peer.say(messages.Status("a", "s2", True), topics.status("r", "a"))
    listen(fleet)
    clock.now += SILENCE + 1
    fleet.turn(0)
    seen = [event for event in published if isinstance(event, AgentJoined | AgentLeft)]
    assert seen == [
        AgentJoined("a", False),
        AgentJoined("a", True),
        AgentLeft("a", f"silent for {SILENCE:.0f} s"),
    ]


def test_an_agent_that_reconnects_after_the_broker_restarted_is_not_reported_as_gone(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock, published: list[Event]
) -> None:
    """A broker that stops publishes the wills of all its clients, and keeps them."""
    assert isinstance(fleet.link, MemoryLink)
    peers = {name: ScriptedAgent(memory, name) for name in "ab"}
    listen(fleet)
    for name in peers:
        where = topics.status("r", name)
        memory.retained[where] = envelope.encode(messages.Status(name, "s1", False))
        memory.repeat(fleet.link, where)
    listen(fleet)
    peers["a"].say(messages.Status("a", "s1", True), topics.status("r", "a"))
    listen(fleet)
    clock.now += RECONNECTION
    listen(fleet)
    assert [event for event in published if isinstance(event, AgentLeft)] == [
        AgentLeft("b", "went away")
    ]
    assert (fleet.agents["a"].online, fleet.agents["b"].online) == (True, False)


def test_a_slot_is_never_used_by_two_versions_at_once(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    """A straggler's version may stay for many rounds, until it is its slot's turn again."""
    assert fleet.endpoint.slots.put("r0", "w1", (b"kept",), "r0").slot == "r0"
    assert fleet.endpoint.slots.put("r8", "w1", (b"weights",), "r0").slot == "r0.1"
    assert fleet.endpoint.slots.put("r8", "w2", (b"others",), "r0").slot == "r0.1"
    assert fleet.endpoint.slots.put("r16", "w1", (b"weights",), "r0").slot == "r0.2"
    fleet.endpoint.slots.clear(keep={"r0", "r16"})
    assert fleet.endpoint.slots.put("r24", "w1", (b"weights",), "r0").slot == "r0.1"
    fleet.endpoint.slots.clear()
    assert fleet.endpoint.slots.put("r32", "w1", (b"weights",), "r0").slot == "r0"
    assert {topic.split("/")[4] for topic in memory.retained if "/model/" in topic} == {"r0"}


def test_chunks_follow_the_messages_that_are_sent_meanwhile(
    fleet: MessageLoop, memory: MemoryBroker, tmp_path: Path
) -> None:
    """An agent that already has its task downloads them as they are published."""
    sent = fleet.endpoint.slots.put("r0", "w1", (bytes(3000),), "r0").manifest
    agent = MemoryLink(memory, "a")
    blob = RetainedBlob(topics.model("r", "r0", "w1"), sent.sha256, sent.size)
    download = Download(agent, blob, tmp_path / "weights", 0.0)
    receive(agent, download)
    assert download.received == 0
    fleet.turn(0)
    receive(agent, download)
    assert (tmp_path / "weights").read_bytes() == bytes(3000)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_no_file_of_weights_is_mapped_while_it_is_moved(
    fleet: MessageLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to move a mapped file."""
    move, moved = Path.replace, list[Path]()

    def replace(path: Path, target: Path) -> Path:
        assert str(path) not in Path("/proc/self/maps").read_text()
        moved.append(move(path, target))
        return moved[-1]

    monkeypatch.setattr(Path, "replace", replace)
    sent = fleet.endpoint.slots.put("r0", "w1", (b"weights",), "r0")
    assert moved == [sent.path]


def receive(link: MemoryLink, download: Download) -> None:
    while delivery := link.receive(0):
        message = envelope.decode(delivery.payload)
        assert isinstance(message, messages.Manifest | messages.Chunk)
        download.take(message, 0.0)


def test_a_resumed_round_overwrites_the_weights_of_the_last_process(
    memory: MemoryBroker, tmp_path: Path
) -> None:
    for _ in range(2):
        slots = WeightSlots(MemoryLink(memory, "coordinator"), "r", tmp_path)
        assert slots.put("r13", "w1", (b"weights",), "r5").slot == "r5"
        slots.send(0.0)
    slots.clear()
    assert not memory.retained


def test_the_address_of_weights_reaches_agents_that_get_no_retained_messages(
    memory: MemoryBroker, tmp_path: Path
) -> None:
    urls = TransferUrls("http://127.0.0.1:1", b"secret")
    slots = WeightSlots(MemoryLink(memory, "coordinator"), "r", tmp_path, urls=urls)
    sent = slots.put("r1", "w1", (b"weights",), "r1")
    slots.send(100.0)
    memory.retained.clear()  # those of another node
    agent = MemoryLink(memory, "a")
    agent.subscribe(topics.manifest(topics.model("r", sent.slot, "w1")))
    arrived = []
    for tenth in range(300):
        slots.send(100.0 + tenth / 10)
        while (delivery := agent.receive(0)) is not None:
            manifest = envelope.decode(delivery.payload)
            assert isinstance(manifest, messages.Manifest)
            assert manifest.url.startswith("http://127.0.0.1:1/weights/")
            arrived.append(tenth / 10)
    assert arrived == pytest.approx(
        [FIRST, 3 * FIRST, 7 * FIRST, 15 * FIRST, *(15 * FIRST + REPEAT * n for n in range(1, 5))],
        abs=0.11,
    )


class Away(MemoryLink):
    """A link whose broker acknowledges nothing."""

    def flush(self, timeout: float) -> bool:
        return False


def test_a_run_ends_without_a_broker_and_its_goodbye_is_not_withdrawn(
    memory: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = MessageLoop(Away(memory, "coordinator"), CARD, tmp_path)
    fleet.endpoint.announce()
    fleet.endpoint.slots.put("r0", "w1", (b"weights",), "r0")
    fleet.dismiss("the run is over")
    assert "did not acknowledge" in caplog.text
    assert any("w1" in topic for topic in memory.retained), (
        "hundreds of messages that withdraw weights would wait behind the goodbye"
    )
    assert not list(tmp_path.rglob("*.weights"))
    fleet.endpoint.withdraw()  # ctrl-C meanwhile
    assert envelope.decode(memory.retained[topics.run("r")]) == messages.Goodbye("the run is over")


def test_a_stopped_coordinator_withdraws_its_card_and_weights_if_the_broker_answers(
    memory: MemoryBroker, tmp_path: Path
) -> None:
    for link, left in ((MemoryLink(memory, "a"), 0), (Away(memory, "b"), 2)):
        fleet = MessageLoop(link, CARD, tmp_path)
        fleet.endpoint.announce()
        fleet.endpoint.slots.put("r0", "w1", (b"weights",), "r0")
        fleet.endpoint.slots.send(0.0)
        fleet.endpoint.withdraw()
        assert len(memory.retained) == left, "a chunk and a manifest"


def test_the_end_of_a_run_waits_until_its_agents_have_left(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    """Otherwise a broker that ends with the coordinator may end before it has delivered the
    goodbye.
    """
    peer, left = ScriptedAgent(memory, "a"), threading.Event()
    listen(fleet)

    def leave() -> None:
        left.set()
        peer.link.publish(topics.status("r", "a"), b"", retain=True)

    threading.Timer(0.3, leave).start()
    start = time.monotonic()
    fleet.dismiss("over", patience=30.0)
    assert left.is_set()
    assert time.monotonic() - start < 15
    assert fleet.link.backlog == 0  # it does not receive the removals that it publishes itself


def test_a_long_reason_from_an_agent_is_truncated_everywhere(
    fleet: MessageLoop, memory: MemoryBroker, published: list[Event]
) -> None:
    """One agent fails with a reason over the limit, which is refused as malformed. Another sends an
    update whose refusal would quote all of it.
    """

    def check(asked: Task, update: Update) -> None:
        raise Refused(f"expected 'loss' to be a finite number, found {update.notes['loss']!r}")

    failing, sending = ScriptedAgent(memory, "a"), ScriptedAgent(memory, "b")
    listen(fleet)
    fleet.driver.begin(begin_phase(fleet, [task("a"), task("b")]), Folding(check))
    failure = messages.Failure("r", 1, 1, "train", task("a").submodel.name, "x" * 900)
    failing.link.publish(
        topics.say("r", "a"),
        envelope.encode(failure).replace(
            b"\xda\x03\x84" + b"x" * 900, b"\xda\x3e\x80" + b"x" * 16_000
        ),
    )
    sending.send(task("b"), weights(), notes={"loss": "x" * 200_000})
    listen(fleet)
    assert [
        (one.agent, one.kind, len(one.reason) <= MAX_TEXT)
        for one in published
        if isinstance(one, Rejected)
    ] == [
        ("a", "malformed", True),
        ("b", "update", True),
    ]
    found = list_tasks(fleet)
    assert found["a"].open
    assert found["b"].outcome.startswith("refused: expected 'loss'")
    assert len(found["b"].outcome) == MAX_TEXT + len("refused: ")
    (receipt,) = (one for one in sending.heard() if isinstance(one, messages.Receipt))
    assert len(receipt.reason) == MAX_TEXT
