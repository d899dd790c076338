"""Releases at a broker: published files are visible, sent once, and withdrawn completely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from export import release_reader
from export.broker_publishing import (
    PublishedReleases,
    announce,
    describe_version,
    publish,
    read_published,
    withdraw,
)
from federated.errors import ExportError
from federated.wire import envelope, messages, topics
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Release, Serving
from tests.support.handmade_releases import Clock, toy

FILES = {"manifest.json", "check.tensors", "w1-d1.onnx", "w1-d1.tensors"}


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(max_payload=8192)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toy(tmp_path / "release", b"\0" * 30_000)


def test_all_files_are_published_and_seen(broker: MemoryBroker, folder: Path) -> None:
    sent = publish(MemoryLink(broker, "coordinator"), "spring", folder, {})
    name = release_reader.read_version(folder)
    assert set(sent) == {(name, file) for file in FILES}
    seen = read_published(MemoryLink(broker, "other"), "spring", Clock())
    assert seen == PublishedReleases(None, sent)
    announce(
        MemoryLink(broker, "coordinator"), Release("spring", describe_version(folder, "spring", {}))
    )
    assert read_published(MemoryLink(broker, "other"), "spring", Clock()).card is not None


def test_only_missing_files_are_published(
    broker: MemoryBroker, folder: Path, tmp_path: Path
) -> None:
    link = MemoryLink(broker, "coordinator")
    sent = publish(link, "spring", folder, {})
    before = link.sent_bytes
    assert publish(link, "spring", folder, sent) == {}
    assert link.sent_bytes == before
    name = release_reader.read_version(folder)
    wrong = {**sent, (name, "w1-d1.onnx"): messages.Manifest("t", 9, 4096, "0" * 64)}
    assert publish(link, "spring", folder, wrong).keys() == {(name, "w1-d1.onnx")}


def test_withdrawing_clears_only_that_version(
    broker: MemoryBroker, folder: Path, tmp_path: Path
) -> None:
    link = MemoryLink(broker, "coordinator")
    publish(link, "spring", folder, {})
    other = toy(tmp_path / "other")
    publish(link, "spring", other, {})
    seen = read_published(link, "spring", Clock())
    assert len(seen.manifests) == 8
    withdraw(link, "spring", [release_reader.read_version(other)], seen.manifests)
    assert {
        place.version for topic in broker.retained if (place := topics.parse(topic)) is not None
    } == {release_reader.read_version(other)}
    while (delivery := link.receive(0)) is not None:
        seen.hear(delivery)
    assert {version for version, _ in seen.manifests} == {release_reader.read_version(other)}
    withdraw(link, "spring", [], seen.manifests)
    assert not broker.retained


def test_version_lists_submodels_and_assignment(folder: Path) -> None:
    version = describe_version(folder, "spring", {"pi": "w1-d1", "tv": "w9"})
    assert version.name == release_reader.read_version(folder) == version.sha256[:12]
    assert (version.round, version.submodels, version.assignment) == (
        7,
        ("w1-d1",),
        {"pi": "w1-d1"},
    )
    assert envelope.decode(envelope.encode(Release("spring", version))) == Release(
        "spring", version
    )


def test_foreign_or_damaged_release_is_refused(folder: Path) -> None:
    with pytest.raises(
        ExportError, match="expected a release of run 'autumn', found one of 'spring'"
    ):
        describe_version(folder, "autumn", {})
    (folder / "w1-d1.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match="expected sha256"):
        describe_version(folder, "spring", {})
    with pytest.raises(ExportError, match="expected sha256"):
        publish(MemoryLink(MemoryBroker(), "c"), "spring", folder, {})


def test_reports_come_and_go() -> None:
    seen, topic = PublishedReleases(), topics.serving("spring", "pi")
    said = Serving("pi", "s", "a" * 12)
    seen.hear(Delivery(topic, envelope.encode(said)))
    seen.hear(Delivery(topics.serving("spring", "tv"), envelope.encode(said)))  # in another's name
    assert seen.servings == {"pi": said}
    seen.hear(Delivery(topic, b"\xc1"))
    assert seen.servings == {"pi": said}
    seen.hear(Delivery(topic, b""))
    assert not seen.servings


@pytest.mark.parametrize(
    "make",
    [
        lambda: topics.release_card("spring"),
        lambda: topics.serving("spring", "pi"),
        lambda: topics.run("spring"),
    ],
)
def test_other_messages_are_ignored(make: Callable[[], str]) -> None:
    seen = PublishedReleases()
    seen.hear(Delivery(make(), envelope.encode(messages.Goodbye("x"))))
    assert seen == PublishedReleases()
