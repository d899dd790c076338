"""Transfers that survive the receiving process."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from federated.errors import Refused
from federated.wire.chunks import slices, split
from federated.wire.messages import Chunk, Manifest
from federated.wire.partial_file import HAVE, PART, PartialFile

DATA = bytes(range(256)) * 20  # 5 chunks of 1 KiB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "update"


def transfer() -> tuple[Manifest, list[Chunk]]:
    manifest = split(DATA, 1024, "one")
    return manifest, list(slices(manifest, DATA))


def test_another_process_resumes_acknowledged_chunks(path: Path) -> None:
    manifest, chunks = transfer()
    first = PartialFile(manifest, path, limit=len(DATA))
    for chunk in chunks[:3]:
        first.take(chunk, 0.0)
    assert first.acknowledge() == b"\x07"
    # killed here: nothing is closed
    second = PartialFile(manifest, path, limit=len(DATA))
    assert second.missing == [3, 4]
    for chunk in chunks[3:]:
        second.take(chunk, 0.0)
    assert second.finish() == path
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no open file")
def test_chunks_are_acknowledged_although_their_file_cannot_be_opened_again(path: Path) -> None:
    """Such as one that a cleaner of old files removed, or while no file handle is left."""
    manifest, chunks = transfer()
    receiver = PartialFile(manifest, path, limit=len(DATA))
    receiver.take(chunks[0], 0.0)
    path.with_name(path.name + PART).unlink()
    assert receiver.acknowledge() == b"\x01"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_acknowledged_chunks_need_no_memory(path: Path) -> None:
    def measure() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    data = bytes(range(256)) * (64 << 12)
    manifest = split(data, 1 << 20, "one")
    receiver, before, most = PartialFile(manifest, path, limit=len(data)), measure(), 0
    for index, chunk in enumerate(slices(manifest, data), 1):
        receiver.take(chunk, 0.0)
        most = max(most, measure())
        if index % 8 == 0:
            receiver.acknowledge()
    whole = receiver.verify()
    assert max(most, measure()) - before < 16 << 20
    assert bytes(whole) == data
    receiver.discard()


def test_unacknowledged_chunks_are_missing_after_a_restart(path: Path) -> None:
    manifest, chunks = transfer()
    PartialFile(manifest, path, limit=len(DATA)).take(chunks[0], 0.0)
    assert PartialFile(manifest, path, limit=len(DATA)).missing == [0, 1, 2, 3, 4]


def test_another_manifest_starts_over(path: Path) -> None:
    manifest, chunks = transfer()
    first = PartialFile(manifest, path, limit=len(DATA))
    first.take(chunks[0], 0.0)
    first.acknowledge()
    other = split(DATA[::-1], 1024, "2")
    second = PartialFile(other, path, limit=len(DATA))
    assert len(second.missing) == 5
    second.take(next(slices(other, DATA[::-1])), 0.0)
    second.acknowledge()
    assert PartialFile(other, path, limit=len(DATA)).missing == [1, 2, 3, 4]


def test_a_bitmap_of_lost_chunks_is_detected_and_discarded(path: Path) -> None:
    manifest, chunks = transfer()
    first = PartialFile(manifest, path, limit=len(DATA))
    for chunk in chunks:
        first.take(chunk, 0.0)
    first.acknowledge()
    part = path.with_name(path.name + PART)
    part.write_bytes(b"\0" * 1024 + part.read_bytes()[1024:])
    second = PartialFile(manifest, path, limit=len(DATA))
    assert second.complete
    with pytest.raises(Refused, match="starts over"):
        second.finish()
    assert not path.exists()
    assert len(second.missing) == 5
    assert len(PartialFile(manifest, path, limit=len(DATA)).missing) == 5


def test_a_damaged_bitmap_is_ignored(path: Path) -> None:
    manifest, _ = transfer()
    PartialFile(manifest, path, limit=len(DATA)).acknowledge()
    for spoilt in (b"", b"\xc1", b"\x92\x01\x02"):
        path.with_name(path.name + HAVE).write_bytes(spoilt)
        assert len(PartialFile(manifest, path, limit=len(DATA)).missing) == 5


def test_a_manifest_over_the_limit_takes_no_room(path: Path) -> None:
    manifest, _ = transfer()
    with pytest.raises(Refused, match="expected at most 10 bytes, found 5120"):
        PartialFile(manifest, path, limit=10)
    assert not list(path.parent.iterdir())


def test_a_discarded_transfer_leaves_nothing(path: Path) -> None:
    manifest, chunks = transfer()
    partial = PartialFile(manifest, path, limit=len(DATA))
    partial.take(chunks[0], 0.0)
    partial.acknowledge()
    partial.discard()
    assert not list(path.parent.iterdir())


def test_a_note_with_a_damaged_manifest_is_ignored(tmp_path: Path) -> None:
    data = bytes(3000)
    manifest = split(data, 1024, "t")
    first = PartialFile(manifest, tmp_path / "w", limit=3000)
    first.take(next(slices(manifest, data)), 0.0)
    first.acknowledge()
    first.close()
    note = tmp_path / "w.have"
    note.write_bytes(note.read_bytes().replace(b"transfer", b"\xff\xffansfer"))
    again = PartialFile(manifest, tmp_path / "w", limit=3000)
    assert again.missing == [0, 1, 2]
    again.discard()
