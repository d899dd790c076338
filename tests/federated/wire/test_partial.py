"""Transfers that outlive the process that receives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from federated.errors import Refused
from federated.wire.chunks import slices, split
from federated.wire.messages import Chunk, Manifest
from federated.wire.partial import HAVE, PART, Partial

DATA = bytes(range(256)) * 20  # 5 chunks of 1 KiB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "update"


def transfer() -> tuple[Manifest, list[Chunk]]:
    manifest = split(DATA, 1024, "one")
    return manifest, list(slices(manifest, DATA))


def test_another_process_goes_on_with_what_was_told(path: Path) -> None:
    manifest, chunks = transfer()
    first = Partial(manifest, path, limit=len(DATA))
    for chunk in chunks[:3]:
        first.take(chunk, 0.0)
    assert first.tell() == b"\x07"
    # killed here: nothing is closed
    second = Partial(manifest, path, limit=len(DATA))
    assert second.receiver.missing(9) == [3, 4]
    for chunk in chunks[3:]:
        second.take(chunk, 0.0)
    assert second.finish() == path
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]


def test_what_was_never_told_comes_again(path: Path) -> None:
    manifest, chunks = transfer()
    Partial(manifest, path, limit=len(DATA)).take(chunks[0], 0.0)
    assert Partial(manifest, path, limit=len(DATA)).receiver.missing(9) == [0, 1, 2, 3, 4]


def test_another_transfer_of_that_name_begins_anew(path: Path) -> None:
    manifest, chunks = transfer()
    first = Partial(manifest, path, limit=len(DATA))
    first.take(chunks[0], 0.0)
    first.tell()
    other = split(DATA[::-1], 1024, "one")
    assert len(Partial(other, path, limit=len(DATA)).receiver.missing(9)) == 5


def test_a_bitmap_that_promises_what_the_disk_lost_is_found_out_and_forgotten(path: Path) -> None:
    manifest, chunks = transfer()
    first = Partial(manifest, path, limit=len(DATA))
    for chunk in chunks:
        first.take(chunk, 0.0)
    first.tell()
    part = path.with_name(path.name + PART)
    part.write_bytes(b"\0" * 1024 + part.read_bytes()[1024:])
    second = Partial(manifest, path, limit=len(DATA))
    assert second.complete
    with pytest.raises(Refused, match="it starts over"):
        second.finish()
    assert not path.exists()
    assert len(second.receiver.missing(9)) == 5
    assert len(Partial(manifest, path, limit=len(DATA)).receiver.missing(9)) == 5


def test_a_spoilt_bitmap_is_none(path: Path) -> None:
    manifest, _ = transfer()
    Partial(manifest, path, limit=len(DATA)).tell()
    for spoilt in (b"", b"\xc1", b"\x92\x01\x02"):
        path.with_name(path.name + HAVE).write_bytes(spoilt)
        assert len(Partial(manifest, path, limit=len(DATA)).receiver.missing(9)) == 5


def test_more_than_expected_takes_no_room(path: Path) -> None:
    manifest, _ = transfer()
    with pytest.raises(Refused, match="expected at most 10 bytes, found 5120"):
        Partial(manifest, path, limit=10)
    assert not list(path.parent.iterdir())


def test_what_is_given_up_leaves_nothing(path: Path) -> None:
    manifest, chunks = transfer()
    partial = Partial(manifest, path, limit=len(DATA))
    partial.take(chunks[0], 0.0)
    partial.tell()
    partial.discard()
    assert not list(path.parent.iterdir())


def test_a_note_that_is_spoilt_is_none(tmp_path: Path) -> None:
    data = bytes(3000)
    manifest = split(data, 1024, "t")
    first = Partial(manifest, tmp_path / "w", limit=3000)
    first.take(next(slices(manifest, data)), 0.0)
    first.tell()
    first.close()
    note = tmp_path / "w.have"
    note.write_bytes(note.read_bytes().replace(b"transfer", b"\xff\xffansfer"))
    again = Partial(manifest, tmp_path / "w", limit=3000)
    assert again.receiver.missing(5) == [0, 1, 2]
    again.discard()
