"""A blob arrives complete over any faulty network, or the transfer raises an error."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.errors import Refused
from federated.wire.chunks import WINDOW, Receiver, Sender, slices, split
from federated.wire.messages import Chunk, Manifest

KIB = 1024


def data_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_a_blob_is_split_into_chunks_with_a_short_last_one() -> None:
    data = data_of(2500)
    manifest = split(data, KIB, "t")
    assert manifest == Manifest("t", 2500, KIB, hashlib.sha256(data).hexdigest())
    assert [(c.index, c.total, c.size, len(c.data)) for c in slices(manifest, data)] == [
        (0, 3, 2500, 1024),
        (1, 3, 2500, 1024),
        (2, 3, 2500, 452),
    ]


def test_nothing_flows_before_a_grant_and_at_most_a_window_after_it() -> None:
    data = data_of(40 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    assert list(sender.next_chunks()) == []
    sender.take_grant(b"", False, 0.0)
    assert list(sender.next_chunks()) == []
    sender.take_grant(b"", True, 0.0)
    assert [c.index for c in sender.next_chunks()] == list(range(16))
    assert list(sender.next_chunks()) == []
    sender.take_grant(bytes([0b1111, 0, 0, 0, 0]), True, 0.1)
    assert [c.index for c in sender.next_chunks()] == [16, 17, 18, 19]


def test_a_sender_asks_after_five_seconds_without_progress_and_then_less_often() -> None:
    data = data_of(4 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    asked = [now for now in range(200) if sender.check_stall(float(now))]
    assert asked == [5, 15, 35, 75, 135, 195]


def test_progress_delays_the_next_question() -> None:
    data = data_of(4 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    sender.take_grant(b"\x00", True, 4.0)
    assert not sender.check_stall(8.9)
    assert sender.check_stall(9.0)
    assert list(sender.next_chunks()) == []  # the answer decides what is sent again
    sender.take_grant(b"\x01", True, 10.0)
    assert [c.index for c in sender.next_chunks()] == [1, 2, 3]
    assert not sender.check_stall(14.9)


def test_only_lost_chunks_are_sent_again_after_a_question() -> None:
    data = data_of(6 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    sender.take_grant(b"", True, 0.0)
    assert len(list(sender.next_chunks())) == 6
    sender.take_grant(bytes([0b110101]), True, 1.0)
    assert list(sender.next_chunks()) == []
    assert sender.check_stall(6.0)
    sender.take_grant(bytes([0b110101]), True, 6.1)
    assert [c.index for c in sender.next_chunks()] == [1, 3]


def test_a_receiver_that_lost_chunks_gets_them_again() -> None:
    data = data_of(3 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    sender.take_grant(bytes([0b111]), True, 0.0)
    assert sender.complete
    sender.take_grant(bytes([0b001]), True, 1.0)
    assert not sender.complete
    assert [c.index for c in sender.next_chunks()] == [1, 2]


def test_chunks_in_flight_when_a_slot_is_lost_are_not_sent_twice() -> None:
    """Otherwise a slow link would be busy with repeated chunks whenever it gets a slot again."""
    data = data_of(20 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    sender.take_grant(b"", True, 0.0)
    assert len(list(sender.next_chunks())) == 16
    sender.take_grant(bytes([0b11, 0, 0]), True, 1.0)
    assert [c.index for c in sender.next_chunks()] == [16, 17]
    sender.take_grant(b"", False, 2.0)
    assert list(sender.next_chunks()) == []
    sender.take_grant(bytes([0b111, 0, 0]), True, 3.0)
    assert [c.index for c in sender.next_chunks()] == [18]


def test_chunks_lost_without_a_slot_are_sent_again_with_the_next_slot() -> None:
    data = data_of(6 * KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    sender.take_grant(b"", True, 0.0)
    assert len(list(sender.next_chunks())) == 6
    sender.take_grant(b"", False, 1.0)
    assert sender.check_stall(6.0)
    sender.take_grant(b"", False, 6.1)
    sender.take_grant(b"", True, 7.0)
    assert len(list(sender.next_chunks())) == 6


def test_an_offer_that_waits_for_a_slot_is_repeated_less_and_less_often() -> None:
    """The receiver knows it, and thousands that repeat theirs would keep it busy."""
    data = data_of(KIB)
    sender = Sender(split(data, KIB, "t"), data, 0.0)
    assert sender.check_stall(5.0), "no answer came"
    sender.take_grant(b"", False, 6.0)
    now = 6.0
    for pause in (60.0, 120.0, 240.0, 240.0):
        assert not sender.check_stall(now + pause - 1)
        now += pause
        assert sender.check_stall(now)
        sender.take_grant(b"", False, now)
    assert sender.check_stall(now + 240.0)
    assert sender.check_stall(now + 240.0 + 60.0), "no answer came"


def test_a_bitmap_of_another_size_is_refused() -> None:
    data = data_of(9 * KIB)
    sender = Sender(split(data, KIB, "t"), data)
    for bitmap in (b"\x00", b"\x00\x00\x00"):
        with pytest.raises(Refused, match="bitmap of 2 bytes"):
            sender.take_grant(bitmap, True, 0.0)


def test_a_manifest_over_the_limit_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(Refused, match="expected at most 1000 bytes"):
        Receiver(Manifest("t", 1 << 60, 64 << 20, "0" * 64), limit=1000)


@pytest.mark.parametrize(
    "change",
    [
        {"transfer": "u"},
        {"index": 3},
        {"index": -1},
        {"total": 4},
        {"size": 2501},
        {"crc32": 1},
        {"data": b"x" * 1024},
        {"data": b""},
        {"data": data_of(1025)},
        {"index": 2},
    ],
)
def test_a_foreign_or_damaged_chunk_is_refused_and_changes_nothing(
    change: dict[str, object],
) -> None:
    data = data_of(2500)
    manifest = split(data, KIB, "t")
    receiver = Receiver(manifest, limit=2500)
    first = next(slices(manifest, data))
    with pytest.raises(Refused):
        receiver.take(replace(first, **change), 0.0)
    assert receiver.missing == [0, 1, 2]
    assert not receiver.is_grant_due(99.0)


def test_a_grant_is_due_after_eight_chunks_or_a_second() -> None:
    data = data_of(20 * KIB)
    chunks = list(slices(split(data, KIB, "t"), data))
    receiver = Receiver(split(data, KIB, "t"), limit=len(data))
    assert not receiver.is_grant_due(50.0)
    for chunk in chunks[:7]:
        receiver.take(chunk, 50.0)
    assert not receiver.is_grant_due(50.9)
    assert receiver.is_grant_due(51.0)
    receiver.take(chunks[7], 50.5)
    assert receiver.is_grant_due(50.5)
    assert receiver.acknowledge() == bytes([255, 0, 0])
    assert not receiver.is_grant_due(60.0)


def test_a_repeated_chunk_is_ignored_but_acknowledged() -> None:
    data = data_of(KIB)
    manifest = split(data, KIB, "t")
    receiver = Receiver(manifest, limit=KIB)
    (chunk,) = slices(manifest, data)
    assert receiver.take(chunk, 0.0)
    assert receiver.acknowledge() == b"\x01"
    assert not receiver.take(chunk, 2.0)
    assert receiver.is_grant_due(3.0)


def test_a_wrong_digest_empties_the_receiver() -> None:
    data = data_of(2 * KIB)
    manifest = replace(split(data, KIB, "t"), sha256="0" * 64)
    receiver = Receiver(manifest, limit=len(data))
    for chunk in slices(manifest, data):
        receiver.take(chunk, 0.0)
    with pytest.raises(Refused, match="starts over"):
        receiver.verify()
    assert receiver.missing == [0, 1]


def test_an_incomplete_transfer_cannot_be_finished() -> None:
    receiver = Receiver(split(data_of(2 * KIB), KIB, "t"), limit=2 * KIB)
    with pytest.raises(Refused, match="2 of 2 chunks are missing"):
        receiver.verify()


def test_an_empty_blob_is_complete_at_once() -> None:
    manifest = split(b"", KIB, "t")
    receiver = Receiver(manifest, limit=0)
    assert receiver.complete
    assert bytes(receiver.verify()) == b""
    assert Sender(manifest, b"").complete


def test_a_receivers_memory_is_aligned_for_tensors() -> None:
    receiver = Receiver(split(data_of(100), KIB, "t"), limit=100)
    assert np.frombuffer(receiver._buffer, np.uint8).ctypes.data % 64 == 0


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(0, 60 * KIB),
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.6),
    twice=st.floats(0, 0.5),
    damage=st.floats(0, 0.3),
    restart=st.booleans(),
)
def test_the_blob_arrives_bit_for_bit_over_a_faulty_network(
    size: int, seed: int, loss: float, twice: float, damage: float, restart: bool
) -> None:
    """Chunks are lost, repeated, damaged and reordered, grants are lost, and the sender restarts.
    No more than a window is ever in flight.
    """
    rng = random.Random(seed)
    data = data_of(size, seed)
    manifest = split(data, KIB, "t")
    sender, receiver = Sender(manifest, data, 0.0), Receiver(manifest, limit=size)
    now, way, offered = 0.0, [], True
    for turn in range(20_000):
        if receiver.complete:
            break
        now += 0.25
        if restart and turn == 5:
            sender, offered = Sender(manifest, data, now), True
        offered = offered or sender.check_stall(now)
        if (offered or receiver.is_grant_due(now)) and rng.random() >= loss:
            sender.take_grant(receiver.acknowledge(), True, now)
        offered = False
        due = list(sender.next_chunks())
        assert len(due) <= WINDOW
        way += [
            _damaged(c, rng) if rng.random() < damage else c
            for c in due
            for _ in range(1 + (rng.random() < twice))
            if rng.random() >= loss
        ]
        rng.shuffle(way)
        for chunk in [way.pop() for _ in range(rng.randint(0, len(way)))]:
            try:
                receiver.take(chunk, now)
            except Refused:
                assert chunk.data != data[chunk.index * KIB : (chunk.index + 1) * KIB]
    assert bytes(receiver.verify()) == data
    sender.take_grant(receiver.acknowledge(), True, now)
    assert sender.complete


def _damaged(chunk: Chunk, rng: random.Random) -> Chunk:
    raw = bytearray(chunk.data)
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return replace(chunk, data=bytes(raw))
