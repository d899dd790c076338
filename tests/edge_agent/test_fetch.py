"""A device gets its released network from a broker, whole and checked, or is told why not."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edge_agent.fetch import fetch, fetch_from
from export.bundle import Bundle, Entry
from export.publish import publish, withdraw
from export.verify import load, sha256
from federated.errors import ExportError, FleetError, LinkError
from federated.wire import messages, topics
from federated.wire.link import Delivery, MqttLink
from federated.wire.memory import MemoryBroker, MemoryLink

GRAPH = Path(__file__).parents[1] / "export" / "toy.onnx"  # of run spring, round 7, submodel w1-d1
PADDED = 40  # KiB: several chunks


class Clock:
    """Half a second passes at each look: five seconds of patience cost no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(max_payload=8192)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release of one submodel, whose file is made longer by an unknown protobuf field, which a reader has to skip."""
    folder = tmp_path / "release"
    folder.mkdir()
    return fill(folder, b"\0" * 1024 * PADDED)


def fill(folder: Path, padding: bytes) -> Path:
    path = folder / "w1-d1.onnx"
    field, length = b"\xc2\x3e", len(padding)  # field 1000, bytes
    varint = b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    path.write_bytes(GRAPH.read_bytes() + field + varint + bytes([length]) + padding)
    entry = Entry("w1-d1", path.name, sha256(path), path.stat().st_size, 4, 0.0)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(Bundle("spring", 7, (2,), "uint8", "class", 2, (entry,))))
    return folder


def test_an_agent_fetches_the_submodel_that_it_had(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release, {"pi": "w1-d1"})
    assert len([topic for topic in broker.retained if "/c/" in topic]) > PADDED // 8
    path = fetch(MemoryLink(broker, "pi"), "spring", "pi", tmp_path / "store", 5)
    assert path == tmp_path / "store" / "spring-w1-d1.onnx"
    assert path.read_bytes() == (release / "w1-d1.onnx").read_bytes()
    assert load(path).outputs == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_only_run_needs_no_name_and_a_submodel_may_be_named(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release)
    assert fetch(MemoryLink(broker, "pi"), None, "w1-d1", tmp_path / "store", 5).exists()


def test_a_file_that_is_there_is_not_fetched_again_and_a_damaged_one_is(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release)
    path = fetch(MemoryLink(broker, "one"), "spring", "w1-d1", tmp_path, 5)
    again = MemoryLink(broker, "two")
    fetch(again, "spring", "w1-d1", tmp_path, 5)
    assert again.received_bytes < 1024
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    fetch(MemoryLink(broker, "three"), "spring", "w1-d1", tmp_path, 5)
    assert sha256(path) == sha256(release / "w1-d1.onnx")


def test_lost_repeated_and_damaged_pieces_are_made_up_for(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release)
    rng = random.Random(3)

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        if "/card" in delivery.topic:
            return [delivery]
        damaged = replace(delivery, payload=delivery.payload[:-1] + bytes([delivery.payload[-1] ^ 1]))
        return rng.choice([[], [delivery], [delivery, delivery], [damaged]])

    broker.tamper = tamper
    path = fetch(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path, 1000, clock=Clock())
    assert sha256(path) == sha256(release / "w1-d1.onnx")


def test_a_newer_release_published_meanwhile_is_fetched_instead(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    coordinator = MemoryLink(broker, "coordinator")
    publish(coordinator, "spring", release)
    old, published = sha256(release / "w1-d1.onnx"), False

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        nonlocal published
        if "/c/" in delivery.topic and not published:
            published = True
            publish(coordinator, "spring", fill(release, b"\1" * 1024))
        return [delivery]

    broker.tamper = tamper
    path = fetch(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path, 1000, clock=Clock())
    assert published
    assert sha256(path) == sha256(release / "w1-d1.onnx") != old


def test_what_is_withdrawn_leaves_nothing_behind(broker: MemoryBroker, release: Path) -> None:
    link = MemoryLink(broker, "coordinator")
    publish(link, "spring", release)
    assert broker.retained
    withdraw(link, "spring", release)
    assert not broker.retained


def test_without_a_release_it_says_what_there_is(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    link = MemoryLink(broker, "pi")
    with pytest.raises(FleetError, match="no release of run 'spring' at this broker"):
        fetch(link, "spring", "pi", tmp_path, 5, clock=Clock())
    publish(MemoryLink(broker, "coordinator"), "spring", release, {"other": "w1-d1"})
    with pytest.raises(FleetError, match=r"nothing was released for 'pi'.*released: spring/w1-d1"):
        fetch(link, "spring", "pi", tmp_path, 5, clock=Clock())


def test_several_runs_have_to_be_told_apart(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    link = MemoryLink(broker, "coordinator")
    publish(link, "spring", release)
    card = messages.decode(broker.retained[topics.release_card("spring", "w1-d1")])
    assert isinstance(card, messages.Release)
    link.publish(topics.release_card("autumn", "w1-d1"), messages.encode(replace(card, run="autumn")), retain=True)
    with pytest.raises(FleetError, match="several runs released a network for 'w1-d1': autumn, spring; choose one with --run"):
        fetch(MemoryLink(broker, "pi"), None, "w1-d1", tmp_path, 9, clock=Clock())


def test_pieces_that_never_come_end_in_time(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release)
    broker.retained.pop(topics.chunk(topics.release("spring", "w1-d1"), 2))
    link = MemoryLink(broker, "pi")
    with pytest.raises(FleetError, match=r"spring/w1-d1 \(\d+ bytes\) did not arrive in time"):
        fetch(link, "spring", "w1-d1", tmp_path / "store", 20, clock=Clock())
    assert not (tmp_path / "store" / "spring-w1-d1.onnx").exists()
    assert not link.patterns, "nothing is listened to any more"


def test_a_card_that_lies_about_its_file_is_refused(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    link = MemoryLink(broker, "coordinator")
    publish(link, "spring", release)
    for topic, payload in list(broker.retained.items()):  # the same file, under another run's name
        other = messages.decode(payload)
        if isinstance(other, messages.Release):
            other = replace(other, run="autumn")
        link.publish(topic.replace("/spring/", "/autumn/"), messages.encode(other), retain=True)
    with pytest.raises(ExportError, match="expected autumn/w1-d1, found spring/w1-d1"):
        fetch(MemoryLink(broker, "pi"), "autumn", "w1-d1", tmp_path, 5)


def test_a_card_of_an_impossible_size_is_refused_before_any_space_is_taken(broker: MemoryBroker, tmp_path: Path) -> None:
    card = messages.Release("spring", 1, "w1-d1", messages.Manifest("t", 2**40, 2**20, "0" * 64))
    MemoryLink(broker, "evil").publish(topics.release_card("spring", "w1-d1"), messages.encode(card), retain=True)
    with pytest.raises(ExportError, match="expected at most 2147483647 bytes"):
        fetch(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path, 5)


def test_a_release_of_another_run_or_a_damaged_one_is_not_published(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected a release of run 'autumn', found one of 'spring'"):
        publish(MemoryLink(broker, "a"), "autumn", release)
    copy = Path(shutil.copytree(release, tmp_path / "copy"))
    (copy / "w1-d1.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match="expected sha256"):
        publish(MemoryLink(broker, "b"), "spring", copy)
    assert not broker.retained


def test_a_fetch_without_trouble_takes_no_waiting(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    publish(MemoryLink(broker, "coordinator"), "spring", release, {"pi": "w1-d1"})
    start = time.monotonic()
    fetch(MemoryLink(broker, "pi"), "spring", "pi", tmp_path, 30)
    assert time.monotonic() - start < 2


@pytest.fixture
def mosquitto() -> Iterator[str]:
    """The address of a real broker on loopback."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no mosquitto on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = subprocess.Popen([program, "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with socket.socket() as door:
                if door.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10)


@pytest.mark.broker
def test_a_real_broker_keeps_a_release_for_devices_that_come_later(mosquitto: str, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    fill(folder, random.Random(0).randbytes(3 * 2**20))  # 13 chunks of 256 KiB
    link = MqttLink(mosquitto, "coordinator")
    publish(link, "spring", folder, {"pi": "w1-d1"})
    link.close()
    path = fetch_from(mosquitto, None, "pi", tmp_path / "store", 30)
    assert sha256(path) == sha256(folder / "w1-d1.onnx")


@pytest.mark.broker
def test_a_broker_that_is_not_there_is_a_link_error(tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        fetch_from("127.0.0.1:9", None, "pi", tmp_path, 5)
