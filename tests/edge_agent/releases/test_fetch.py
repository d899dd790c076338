"""A device downloads its release completely and checked, or gets a reason."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.broker import local_broker as brokers
from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_download import locate_version
from edge_agent.releases.release_follower import fetch, fetch_from
from export import release_reader
from export.broker_publishing import announce, describe_version, publish
from export.onnx_session import load
from federated.errors import ExportError, FleetError, LinkError, StoreError
from federated.runtime.atomic_files import sha256
from federated.wire import envelope, messages, topics
from federated.wire.chunks import slices
from federated.wire.link import Delivery, Link
from federated.wire.links.catalogue import open_link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.partial_file import HAVE, PART
from federated.wire.release_messages import Release, Version
from tests.support.handmade_releases import Clock, toy

PADDED = 40  # KiB: several chunks
HERE = {"manifest.json", "check.tensors", "w1-d1.onnx", "w1-d1.tensors"}


def fetch_folder(
    link: Link, run: str | None, name: str, store: Path, timeout: float, **named: Any
) -> Path:
    return fetch(link, Subscription(run, name, None, store), timeout, **named)[0]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(max_payload=8192)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return toy(tmp_path / "release", b"\0" * 1024 * PADDED)


def put(
    broker: MemoryBroker | Link,
    folder: Path,
    assignment: Mapping[str, str] = {},
    run: str = "spring",
) -> Version:
    """Publish a release for all agents."""
    link = MemoryLink(broker, "coordinator") if isinstance(broker, MemoryBroker) else broker
    version = describe_version(folder, run, assignment)
    publish(link, run, folder, {})
    announce(link, Release(run, version))
    return version


def base(folder: Path, file: str = "w1-d1.onnx") -> str:
    return topics.release("spring", release_reader.read_version(folder), file)


def test_agent_downloads_its_own_submodel(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    version = put(broker, release, {"pi": "w1-d1"})
    assert len([topic for topic in broker.retained if "/c/" in topic]) > PADDED // 8
    folder = fetch_folder(MemoryLink(broker, "pi"), "spring", "pi", tmp_path / "store", 5)
    assert folder == tmp_path / "store" / "spring" / version.name
    assert {path.name for path in folder.iterdir()} == HERE
    assert release_reader.read(folder, "w1-d1").round == 7
    assert load(folder / "w1-d1.onnx").outputs == 2


def test_only_files_of_own_submodel_are_downloaded(broker: MemoryBroker, tmp_path: Path) -> None:
    put(broker, toy(tmp_path / "release", submodels=("w0.5-d1", "w1-d1")), {"pi": "w0.5-d1"})
    folder = fetch_folder(MemoryLink(broker, "pi"), "spring", "pi", tmp_path / "store", 5)
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "check.tensors",
        "w0.5-d1.onnx",
        "w0.5-d1.tensors",
    }
    assert (
        fetch_folder(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 5) == folder
    )
    assert len(list(folder.iterdir())) == 6


def test_only_run_is_found_without_a_name(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    put(broker, release)
    assert (
        release_reader.read(
            fetch_folder(MemoryLink(broker, "pi"), None, "w1-d1", tmp_path / "store", 5), "w1-d1"
        ).run
        == "spring"
    )


def test_only_missing_and_damaged_files_are_downloaded(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    put(broker, release)
    path = fetch_folder(MemoryLink(broker, "one"), "spring", "w1-d1", tmp_path, 5) / "w1-d1.onnx"
    again = MemoryLink(broker, "two")
    fetch_folder(again, "spring", "w1-d1", tmp_path, 5)
    assert again.received_bytes < 1024
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (path.parent / "manifest.json").unlink()
    fetch_folder(MemoryLink(broker, "three"), "spring", "w1-d1", tmp_path, 5)
    assert sha256(path) == sha256(release / "w1-d1.onnx")


def test_lost_repeated_and_damaged_chunks_are_recovered(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    put(broker, release)
    rng = random.Random(3)

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        if "/card" in delivery.topic:
            return [delivery]
        damaged = replace(
            delivery, payload=delivery.payload[:-1] + bytes([delivery.payload[-1] ^ 1])
        )
        return rng.choice([[], [delivery], [delivery, delivery], [damaged]])

    broker.tamper = tamper
    folder = fetch_folder(
        MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 3000, clock=Clock()
    )
    assert {path.name: sha256(path) for path in folder.iterdir()} == {
        name: sha256(release / name) for name in HERE
    }


def test_newer_release_replaces_the_download(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    put(broker, release)
    newer, published = toy(tmp_path / "newer", b"\1" * 1024), False

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        nonlocal published
        if "/c/" in delivery.topic and not published:
            published = True
            put(broker, newer)
        return [delivery]

    broker.tamper = tamper
    folder = fetch_folder(
        MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 1000, clock=Clock()
    )
    assert published
    assert folder.name == release_reader.read_version(newer) != release_reader.read_version(release)


def test_republished_files_use_the_new_chunk_size(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    """A coordinator behind a broker with a lower limit: chunks of two sizes under one topic."""
    put(broker, release)
    again = False

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        nonlocal again
        if "onnx/c/" in delivery.topic and not again:
            again = True
            put(MemoryLink(broker, "second", chunk=2048), release)
        return [delivery]

    broker.tamper = tamper
    folder = fetch_folder(
        MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 1000, clock=Clock()
    )
    assert again
    assert release_reader.read(folder, "w1-d1").run == "spring"


def test_missing_release_lists_available_ones(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    link = MemoryLink(broker, "pi")
    with pytest.raises(FleetError, match="no release of run 'spring' at this broker"):
        fetch_folder(link, "spring", "pi", tmp_path, 5, clock=Clock())
    put(broker, release, {"other": "w1-d1"})
    with pytest.raises(FleetError, match=r"nothing was released for 'pi'.*released: spring/w1-d1"):
        fetch_folder(link, "spring", "pi", tmp_path, 5, clock=Clock())


def test_several_runs_require_a_choice(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    version = put(broker, release)
    announce(MemoryLink(broker, "coordinator"), Release("autumn", version))
    with pytest.raises(
        FleetError,
        match="several runs released a network for 'w1-d1': autumn, spring; choose one with --run",
    ):
        fetch_folder(MemoryLink(broker, "pi"), None, "w1-d1", tmp_path, 9, clock=Clock())


def test_missing_chunks_time_out(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    version = put(broker, release)
    missing = broker.retained.pop(topics.chunk(base(release), 2))
    link = MemoryLink(broker, "pi")
    with pytest.raises(
        FleetError, match=rf"spring/w1-d1 \(version {version.name}\) did not arrive in time"
    ):
        fetch_folder(link, "spring", "w1-d1", tmp_path / "store", 20, clock=Clock())
    assert not list((tmp_path / "store").rglob("w1-d1.onnx"))
    assert not link.patterns, "all subscriptions ended"
    broker.retained[topics.chunk(base(release), 2)] = missing
    came: list[str] = []
    broker.tamper = lambda delivery: (came.append(delivery.topic), [delivery])[1]
    folder = fetch_folder(
        MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 1000, clock=Clock()
    )
    assert sha256(folder / "w1-d1.onnx") == sha256(release / "w1-d1.onnx")
    pieces = [topic for topic in came if topic.startswith(base(release) + "/c/")]
    assert topics.chunk(base(release), 2) in pieces
    assert len(pieces) < sum(
        topic.startswith(base(release) + "/c/") for topic in broker.retained
    ), "only what was missing"
    assert not [path for path in folder.iterdir() if path.suffix in (HAVE, PART)]


def test_withdrawn_release_is_reported(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    put(broker, release)

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        if "/c/" in delivery.topic:
            broker.tamper = None
            announce(MemoryLink(broker, "second"), Release("spring"))
        return [delivery]

    broker.tamper = tamper
    with pytest.raises(FleetError, match=r"withdrew .* for 'w1-d1'"):
        fetch_folder(
            MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 1000, clock=Clock()
        )


def test_card_with_wrong_files_is_refused(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    version = put(broker, release)
    for topic, payload in list(broker.retained.items()):  # the same files, under another run's name
        if not topic.endswith("/card"):
            MemoryLink(broker, "evil").publish(
                topic.replace("/spring/", "/autumn/"), payload, retain=True
            )
    announce(MemoryLink(broker, "evil"), Release("autumn", version))
    with pytest.raises(ExportError, match="expected round 7 of 'autumn', found 7 of 'spring'"):
        fetch_folder(MemoryLink(broker, "pi"), "autumn", "w1-d1", tmp_path, 5)
    announce(MemoryLink(broker, "evil"), Release("spring", replace(version, submodels=("w9",))))
    with pytest.raises(ExportError, match="the card promises submodel 'w9'"):
        fetch_folder(MemoryLink(broker, "pi"), "spring", "w9", tmp_path, 5)


@pytest.mark.parametrize(
    ("size", "found"), [(0, "found 0"), (2**40, "expected 1 to 4194304 bytes, found 1099511627776")]
)
def test_card_of_impossible_size_is_refused_early(
    broker: MemoryBroker, tmp_path: Path, size: int, found: str
) -> None:
    announce(
        MemoryLink(broker, "evil"),
        Release("spring", Version("0" * 12, 1, "0" * 64, size, ("w1-d1",))),
    )
    with pytest.raises(ExportError, match=found):
        fetch_folder(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path, 5)


def test_file_with_wrong_digest_is_given_up(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    """Every chunk is intact, but the file is not the promised one."""
    put(broker, release)
    other = toy(tmp_path / "other", b"\1" * 1024 * PADDED)
    genuine = sha256(release / "w1-d1.onnx")
    for topic, payload in list(broker.retained.items()):
        message = envelope.decode(payload)
        if topic.startswith(base(release) + "/c/") and isinstance(message, messages.Chunk):
            data = (other / "w1-d1.onnx").read_bytes()
            swapped = messages.Manifest(message.transfer, len(data), 4096, genuine)
            for chunk in slices(swapped, data):
                broker.retained[topics.chunk(base(release), chunk.index)] = envelope.encode(chunk)
            broker.retained[topics.manifest(base(release))] = envelope.encode(swapped)
            break
    with pytest.raises(ExportError, match=r"w1-d1.onnx of version .*: expected sha256"):
        fetch_folder(
            MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 1000, clock=Clock()
        )
    assert not list((tmp_path / "store").rglob("w1-d1.onnx*"))


def test_run_name_cannot_escape_the_store(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"found '\.\.'"):
        locate_version(tmp_path, "..", "0" * 12)


def test_unwritable_store_is_reported(broker: MemoryBroker, release: Path, tmp_path: Path) -> None:
    put(broker, release)
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="store"):
        fetch_folder(MemoryLink(broker, "pi"), "spring", "w1-d1", tmp_path / "store", 5)


def test_untrained_submodels_are_marked_for_unknown_agents(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    put(broker, toy(tmp_path / "two", submodels=("w0.5-d1", "w1-d1"), untrained=("w0.5-d1",)))
    with pytest.raises(
        FleetError, match=r"released: spring/w0\.5-d1 \(not trained\), spring/w1-d1 \(--submodel\)"
    ):
        fetch_folder(MemoryLink(broker, "new"), "spring", "new", tmp_path, 5)


def test_undisturbed_download_does_not_wait(
    broker: MemoryBroker, release: Path, tmp_path: Path
) -> None:
    put(broker, release, {"pi": "w1-d1"})
    start = time.monotonic()
    fetch_folder(MemoryLink(broker, "pi"), "spring", "pi", tmp_path, 30)
    assert time.monotonic() - start < 2


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        yield started.address


@pytest.mark.broker
def test_broker_retains_release_for_later_devices(address: str, tmp_path: Path) -> None:
    # 13 chunks of 256 KiB
    folder = toy(tmp_path / "release", random.Random(0).randbytes(3 * 2**20))
    link = open_link(address, "coordinator")
    put(link, folder, {"pi": "w1-d1"})
    link.close()
    there, submodel = fetch_from(address, None, "pi", tmp_path / "store", 30)
    assert submodel == "w1-d1"
    assert sha256(there / "w1-d1.onnx") == sha256(folder / "w1-d1.onnx")


@pytest.mark.broker
def test_unreachable_broker_is_a_link_error(tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        fetch_from("127.0.0.1:9", None, "pi", tmp_path, 5)
