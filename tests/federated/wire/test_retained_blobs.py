"""Downloads of weights and releases that survive the link and the process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from federated.errors import Refused
from federated.wire import envelope, messages, topics
from federated.wire.chunks import slices, split
from federated.wire.link import LINK_DOWN, LINK_UP
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.partial_file import HAVE, PART
from federated.wire.retained_blobs import PATIENCE, Download, RetainedBlob, publish

KIB = 1024
DATA = bytes(range(256)) * 160  # 40 chunks of 1 KiB
BASE = topics.model("r", "v", "w1")
MANIFEST = split(DATA, KIB, "v-w1")


class Fetcher:
    """A download that `take` drives by a number of chunks. came: indices of the chunks that the
    broker delivered.
    """

    def __init__(self, broker: MemoryBroker, path: Path, name: str = "a") -> None:
        self.link, self.now = MemoryLink(broker, name), 0.0
        self.came: list[int] = []
        blob = RetainedBlob(BASE, MANIFEST.sha256, len(DATA))
        self.download = Download(self.link, blob, path, self.now, sync=False)

    def take(self, most: int = 1000) -> bool:
        """Handle up to this number of new chunks, and return whether the download is complete."""
        until = len(self.came) + most
        while len(self.came) < until and (delivery := self.link.receive(0)) is not None:
            if delivery.topic in (LINK_DOWN, LINK_UP):
                self.download.resume(
                    self.now
                ) if delivery.topic == LINK_UP else self.download.save()
            elif delivery.payload:
                message = envelope.decode(delivery.payload)
                assert isinstance(message, messages.Manifest | messages.Chunk)
                if isinstance(message, messages.Chunk):
                    self.came.append(message.index)
                if self.download.take(message, self.now):
                    return True
        return False


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    publish(MemoryLink(broker, "coordinator"), BASE, MANIFEST, memoryview(DATA))
    return broker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w1.weights"


def test_a_complete_download_leaves_only_its_file(broker: MemoryBroker, path: Path) -> None:
    fetcher = Fetcher(broker, path)
    assert fetcher.take()
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]
    assert sorted(fetcher.came) == list(range(40))
    assert not fetcher.link.patterns


def test_after_a_kill_the_next_process_requests_the_missing_chunks(
    broker: MemoryBroker, path: Path
) -> None:
    first = Fetcher(broker, path)
    assert not first.take(26)
    first.link.kill()
    os.close(first.download._lock)  # as the system does when a process ends
    second = Fetcher(broker, path)
    assert second.take()
    assert path.read_bytes() == DATA
    assert sorted(second.came) == list(range(24, 40)), (
        "by name, each once; what had come since the bitmap was last kept comes again"
    )


def test_a_process_killed_before_finishing_downloads_nothing_again(
    broker: MemoryBroker, path: Path
) -> None:
    first = Fetcher(broker, path)
    assert first.download.take(MANIFEST, 0.0) is False
    partial = first.download._partial
    assert partial is not None
    for chunk in slices(MANIFEST, DATA):
        partial.take(chunk, 0.0)
    first.download.close()
    second = Fetcher(broker, path)
    assert second.take()
    assert second.came == []
    assert path.read_bytes() == DATA


def test_after_a_reconnect_only_missing_chunks_arrive(broker: MemoryBroker, path: Path) -> None:
    """The session was lost with the broker: everything still subscribed is delivered again."""
    fetcher = Fetcher(broker, path)
    fetcher.take(24)
    fetcher.link.drop()
    # what it had not read when the link fell is lost here
    while (delivery := fetcher.link.receive(0)) is not None:
        if delivery.topic == LINK_DOWN:
            fetcher.download.save()
    fetcher.link.restore()
    for pattern in list(fetcher.link.patterns):
        broker.repeat(fetcher.link, pattern)
    fetcher.came.clear()
    assert fetcher.take()
    assert sorted(set(fetcher.came)) == list(range(24, 40))
    assert path.read_bytes() == DATA


def test_two_downloads_into_one_folder_do_not_share_a_file(
    broker: MemoryBroker, path: Path
) -> None:
    first, second = Fetcher(broker, path, "a"), Fetcher(broker, path, "b")
    first.take(10)
    second.take(10)
    assert len(list(path.parent.glob(f"*{PART}"))) == 2
    assert second.take()
    assert first.take()
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]


def test_a_download_without_the_lock_leaves_no_partial_file(
    broker: MemoryBroker, path: Path
) -> None:
    first, second = Fetcher(broker, path, "a"), Fetcher(broker, path, "b")
    first.take(10)
    second.take(10)
    second.download.close()
    first.download.close()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name + HAVE, path.name + PART]


def test_a_download_over_http_without_the_lock_leaves_no_file_of_its_own(
    broker: MemoryBroker, path: Path
) -> None:
    one, other = (replace(MANIFEST, url=f"http://127.0.0.1:1/{i}") for i in range(2))
    first, second = Fetcher(broker, path, "a"), Fetcher(broker, path, "b")
    for fetcher in (first, second):
        fetcher.download.take(one, fetcher.now)
    assert len(list(path.parent.glob(f"*{PART}"))) == 2
    second.download.take(other, second.now)
    assert len(list(path.parent.glob(f"*{PART}"))) == 2, "another address, the same blob"
    second.download.close()
    assert [found.name for found in path.parent.iterdir()] == [path.name + PART]
    first.download.close()


def test_a_discarded_download_starts_over(broker: MemoryBroker, path: Path) -> None:
    first = Fetcher(broker, path)
    first.take(10)
    first.download.discard()
    assert list(path.parent.iterdir()) == []
    assert Fetcher(broker, path).take()


def test_damage_on_the_disk_is_detected_and_fetched_again(broker: MemoryBroker, path: Path) -> None:
    first = Fetcher(broker, path)
    first.take(24)
    first.download.close()
    part = path.with_name(path.name + PART)
    part.write_bytes(b"\0" * 512 + part.read_bytes()[512:])
    second = Fetcher(broker, path)
    with pytest.raises(Refused, match="starts over"):
        second.take()
    assert second.download.digest_failures == 1
    for _ in range(3):
        second.now += PATIENCE
        second.download.tick(second.now)
        if second.take():
            break
    assert path.read_bytes() == DATA


def test_a_full_disk_is_an_error_and_leaves_nothing(
    broker: MemoryBroker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Fetcher(broker, path).take()
    assert list(path.parent.iterdir()) == []


def test_another_version_in_the_same_slot_is_not_fetched(broker: MemoryBroker, path: Path) -> None:
    """The slot of a withdrawn version is reused. A straggler that missed the withdrawal must not
    fetch chunks of the new version.
    """
    fetcher = Fetcher(broker, path)
    fetcher.take(10)
    other = split(bytes(40 * KIB), KIB, "v9-w1")
    publish(MemoryLink(broker, "coordinator"), BASE, other, memoryview(bytes(40 * KIB)))
    while fetcher.link.receive(0) is not None:  # what was under way
        pass
    for pause in (PATIENCE, 2 * PATIENCE, 4 * PATIENCE):
        fetcher.download.tick(fetcher.now + pause - 0.1)
        assert fetcher.link.receive(0) is None, "it asks less and less often"
        fetcher.now += pause
        fetcher.download.tick(fetcher.now)
        came = [
            delivery for delivery in iter(lambda: fetcher.link.receive(0), None) if delivery.payload
        ]
        assert [topics.parse(delivery.topic).kind for delivery in came] == ["manifest"]  # type: ignore[union-attr]
        with pytest.raises(Refused, match="expected 40960 bytes"):
            fetcher.download.take(other, fetcher.now)
