"""A fleet trains with weights and updates over HTTP, and only control messages over MQTT."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_inbox import MAX_DAMAGED
from coordinator.fleet.update_reception import Intake
from coordinator.http_transfers.transfer_server import TransferServer
from coordinator.http_transfers.transfer_urls import TransferUrls, sign
from coordinator.observe.events import Event
from federated.wire import messages, topics
from federated.wire.chunks import slices, split
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.partial_file import HAVE, PART
from tests.support.manual_clock import Clock
from tests.support.memory_federation import RUN, Federation, Member, digits, federate
from tests.support.scripted_agent import Folding, ScriptedAgent, begin_phase, listen, task
from tests.support.scripted_coordinator import CARD

SECRET = b"s" * 32
DATA = bytes(range(256)) * 20
SETTINGS = {"rounds": 2, "model.name": "mlp-small", "train.epochs": 1, "evaluate.devices": False}


class Recorder(MemoryBroker):
    """A broker that remembers on which topics it received messages, and the largest one."""

    def __init__(self) -> None:
        super().__init__()
        self.topics, self.largest = set[str](), 0

    def publish(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        self.topics.add(topic)
        self.largest = max(self.largest, len(payload))
        super().publish(topic, payload, retain=retain, qos=qos)


def train(folder: Path, broker: MemoryBroker, above: int | None) -> Federation:
    """Run a fleet of two; above: see `TransferUrls`; None: without HTTP."""
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    spool = folder / "runs" / RUN / "spool"
    if above is None:
        return federate(folder, members, SETTINGS, broker=broker)
    with closing(TransferServer(spool, SECRET, ("127.0.0.1", 0))) as server:
        urls = TransferUrls(f"http://127.0.0.1:{server.port}", SECRET, above)
        return federate(folder, members, SETTINGS, broker=broker, urls=urls)


def test_a_run_over_http_equals_one_over_mqtt_and_sends_no_chunk_to_the_broker(
    tmp_path: Path,
) -> None:
    over_http, over_mqtt = Recorder(), Recorder()
    one = train(tmp_path / "http", over_http, 0)
    other = train(tmp_path / "mqtt", over_mqtt, None)
    assert one.result.scores == other.result.scores
    for over, by_chunks in (
        (one.result.bytes_up, other.result.bytes_up),
        (one.result.bytes_down, other.result.bytes_down),
    ):
        assert over == pytest.approx(by_chunks, rel=0.1), "bytes over HTTP count, too"
    assert not [topic for topic in over_http.topics if "/c/" in topic]
    assert [topic for topic in over_mqtt.topics if "/c/" in topic]
    assert over_http.largest < over_mqtt.largest
    assert max(topic.count("/") for topic in over_http.topics) <= 7, "as AWS IoT Core allows"
    assert not list((tmp_path / "http").rglob("*.part"))


def test_small_transfers_stay_on_mqtt(tmp_path: Path) -> None:
    broker = Recorder()
    train(tmp_path, broker, 1 << 30)
    assert any("/c/" in topic for topic in broker.topics)


class Uploading:
    """A coordinator that expects an update of an agent over HTTP, and the agent's offer of it."""

    def __init__(self, folder: Path) -> None:
        self.memory, self.clock, self.events = MemoryBroker(), Clock(), list[Event]()
        self.fleet = MessageLoop(
            MemoryLink(self.memory, "coordinator"),
            CARD,
            folder,
            Intake(urls=TransferUrls("http://127.0.0.1:1", SECRET, 100)),
            publish=self.events.append,
            clock=self.clock,
        )
        self.fleet.endpoint.announce()
        self.agent = ScriptedAgent(self.memory, "a")
        listen(self.fleet)
        self.task = task("a")
        self.fleet.driver.begin(begin_phase(self.fleet, [self.task]), Folding())
        listen(self.fleet)
        self.agent.heard()
        self.manifest = split(DATA, 2**18, "t")

    def offer(self) -> list[messages.Message]:
        """Offer the update, and return what the coordinator answers."""
        one = self.task
        self.agent.say(
            messages.Offer(self.manifest, "r", one.round, one.attempt, one.work, one.submodel.name)
        )
        listen(self.fleet)
        return self.agent.heard()

    def turn(self) -> list[messages.Message]:
        """Let half a second pass, and return what the coordinator says."""
        self.clock.now += 0.5
        listen(self.fleet)
        return self.agent.heard()

    @property
    def part(self) -> Path:
        (found,) = self.fleet.inbox.spool.rglob("*.part")
        return found


def test_a_grant_names_the_address_of_this_update(tmp_path: Path) -> None:
    uploading = Uploading(tmp_path)
    (grant,) = uploading.offer()
    assert isinstance(grant, messages.Grant)
    path = uploading.part.relative_to(tmp_path)
    key = sign(SECRET, str(path), 5120)
    assert grant.url == f"http://127.0.0.1:1/updates/{path}?size=5120&key={key}"
    assert (grant.open, grant.have) == (True, b"")


def test_an_upload_that_goes_on_is_progress(tmp_path: Path) -> None:
    uploading = Uploading(tmp_path)
    uploading.offer()
    before = uploading.fleet.tasks[0].moved
    uploading.turn()
    assert uploading.fleet.tasks[0].moved == before
    uploading.part.write_bytes(DATA[:1000])
    uploading.turn()
    assert uploading.fleet.tasks[0].moved > before


def test_an_upload_with_another_digest_starts_over_and_is_given_up_at_last(
    tmp_path: Path,
) -> None:
    uploading = Uploading(tmp_path)
    uploading.offer()
    for _ in range(MAX_DAMAGED - 1):
        uploading.part.write_bytes(bytes(len(DATA)))
        (refusal,) = uploading.offer()
        assert isinstance(refusal, messages.Refusal)
        assert "expected sha256" in refusal.reason
        assert uploading.part.read_bytes() == b""
    uploading.part.write_bytes(bytes(len(DATA)))
    (receipt,) = uploading.offer()
    assert isinstance(receipt, messages.Receipt)
    assert (receipt.accepted, "did not match" in receipt.reason) == (False, True)
    assert not list(tmp_path.rglob("*.part")), "nobody may upload it any more"


def test_chunks_of_an_update_that_is_expected_over_http_are_refused(tmp_path: Path) -> None:
    uploading = Uploading(tmp_path)
    uploading.offer()
    (chunk,) = slices(uploading.manifest, DATA)
    uploading.agent.say(chunk, topics.chunk(topics.upload("r", "a", "t"), 0))
    (refusal,) = uploading.turn()
    assert isinstance(refusal, messages.Refusal)
    assert "over HTTP" in refusal.reason


def test_an_upload_ends_with_its_phase(tmp_path: Path) -> None:
    uploading = Uploading(tmp_path)
    uploading.offer()
    assert uploading.part.exists()
    uploading.fleet.inbox.expect({})
    assert not list(tmp_path.rglob("*.part"))


def test_an_upload_continues_after_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    before = Uploading(tmp_path)
    before.offer()
    before.part.write_bytes(DATA[:1000])
    after = Uploading(tmp_path)
    after.offer()
    assert after.part.read_bytes() == DATA[:1000]


def test_an_upload_begins_where_a_killed_process_left_only_the_note_of_chunks(
    tmp_path: Path,
) -> None:
    before = Uploading(tmp_path)
    before.offer()
    path = before.part.with_suffix("")
    before.part.unlink()
    path.with_name(path.name + HAVE).write_bytes(b"note")
    (grant,) = Uploading(tmp_path).offer()
    assert isinstance(grant, messages.Grant)
    assert grant.open
    assert [one.name for one in path.parent.iterdir()] == [path.name + PART]
