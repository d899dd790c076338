"""What a worker does with the chunks of an update, over a broker in memory."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.round.tensor_check import TensorCheck
from coordinator.update_workers import update_receiver
from coordinator.update_workers.update_receiver import MOST_INVALID, UpdateReceiver
from coordinator.update_workers.worker_messages import (
    Damaged,
    Drop,
    Grown,
    Invalid,
    Pause,
    Receive,
    Report,
    Whole,
)
from federated.task import Update
from federated.wire import envelope, tensors, topics
from federated.wire.chunks import GRANT_DELAY, slices, split
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import encode_update
from federated.wire.codecs.weights import encode_weights, pack_weights
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.messages import Chunk, Grant, Manifest
from tests.support.scripted_coordinator import SMALL

RUN, AGENT, EPOCH = "r", "ann", 7
WEIGHTS = {"w": np.ones((2, 4), np.float32), "b": np.zeros(3, np.float32)}
DATA = bytes(range(256)) * 16  # four chunks
MANIFEST = split(DATA, 1024, "t")


class Bench:
    """A worker's receiver, and an agent at the same broker.

    reports: what the worker reported.
    """

    def __init__(self, memory: MemoryBroker, folder: Path) -> None:
        self.link, self.agent = MemoryLink(memory, "worker"), MemoryLink(memory, "agent")
        self.agent.subscribe(topics.command(RUN, AGENT))
        self.reports = list[Report]()
        self.path = folder / "ann.update"
        self.receiver = UpdateReceiver(self.link, RUN, EPOCH, self.reports.append)

    def order(self, manifest: Manifest = MANIFEST, number: int = 1) -> None:
        self.receiver.obey(Receive(number, AGENT, manifest, str(self.path)), 0.0)

    def send(self, *chunks: Chunk, now: float = 0.0) -> None:
        for chunk in chunks:
            base = topics.upload(RUN, AGENT, "t")
            self.agent.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))
        while (delivery := self.link.receive(0.0)) is not None:
            self.receiver.take(delivery, now)

    def list_grants(self) -> list[tuple[bytes, bool]]:
        """Return the bitmaps that the agent has received since the last call."""
        found = []
        while (delivery := self.agent.receive(0.0)) is not None:
            message, epoch = envelope.decode_with_epoch(delivery.payload)
            assert isinstance(message, Grant)
            assert epoch == EPOCH
            found.append((message.have, message.open))
        return found


@pytest.fixture
def bench(memory: MemoryBroker, tmp_path: Path) -> Bench:
    return Bench(memory, tmp_path)


def list_chunks() -> list[Chunk]:
    return list(slices(MANIFEST, DATA))


def test_a_complete_update_is_verified_put_into_place_and_reported(bench: Bench) -> None:
    bench.order()
    assert bench.list_grants() == [(b"\0", True)]
    bench.send(*list_chunks())
    assert bench.reports == [Grown(1, 0), Whole(1)]
    assert bench.path.read_bytes() == DATA
    assert [path.name for path in bench.path.parent.iterdir()] == [bench.path.name]
    assert not bench.receiver.busy


def test_chunks_are_acknowledged_and_a_repeated_order_asks_for_the_missing_ones(
    bench: Bench,
) -> None:
    bench.order()
    bench.send(list_chunks()[2])
    bench.list_grants()
    bench.receiver.grant(GRANT_DELAY)
    assert bench.list_grants() == [(b"\4", True)]
    bench.order()
    assert bench.list_grants() == [(b"\4", True)]
    assert bench.reports[-1] == Grown(1, 1)


def test_a_paused_transfer_stores_chunks_in_flight_and_asks_for_no_more(bench: Bench) -> None:
    bench.order()
    bench.list_grants()
    bench.receiver.obey(Pause(1), 0.0)
    bench.send(list_chunks()[0])
    bench.receiver.grant(GRANT_DELAY)
    assert bench.list_grants() == []
    bench.order()
    assert bench.list_grants() == [(b"\1", True)]


@pytest.mark.parametrize("complete", [False, True])
def test_a_dropped_transfer_leaves_no_file(bench: Bench, complete: bool) -> None:
    bench.order()
    bench.send(*list_chunks()[: None if complete else 2])
    bench.receiver.obey(Drop(1, str(bench.path)), 0.0)
    assert not list(bench.path.parent.iterdir())
    bench.send(list_chunks()[0])  # its topic is no longer subscribed to
    assert not bench.receiver.busy


def test_an_update_with_a_wrong_digest_is_sent_again(bench: Bench) -> None:
    bench.order(replace(MANIFEST, sha256="0" * 64))
    bench.send(*list_chunks())
    assert isinstance(bench.reports[-1], Damaged)
    assert bench.receiver.busy
    bench.list_grants()
    bench.order(replace(MANIFEST, sha256="0" * 64))
    assert bench.list_grants() == [(b"\0", True)]
    assert not bench.path.exists()


def test_another_worker_goes_on_where_a_killed_one_ended(
    memory: MemoryBroker, tmp_path: Path
) -> None:
    first = Bench(memory, tmp_path)
    first.order()
    first.send(*list_chunks()[:2])
    first.receiver.grant(GRANT_DELAY)  # writes the bitmap
    first.link.kill()
    second = Bench(memory, tmp_path)
    second.order(number=2)
    assert second.list_grants() == [(b"\3", True)]
    second.send(*list_chunks()[2:])
    assert second.reports[-1] == Whole(2)
    assert second.path.read_bytes() == DATA


def encode_trained(change: float) -> bytes:
    """Return an encoded update of `WEIGHTS`, every entry of which moved by `change`."""
    moved = {name: value + np.float32(change) for name, value in WEIGHTS.items()}
    notes = {"labels": [1], "loss": 1.0}
    made = Update(RUN, 1, 1, AGENT, "train", SMALL, "r0", 10, 1, moved, notes)
    return b"".join(encode_update(made, find_codec("fp16"), WEIGHTS))


def examine(bench: Bench, data: bytes, weights: Path) -> Whole:
    """Send an update to be checked, and return the worker's report of it."""
    weights.write_bytes(tensors.encode({}, WEIGHTS))
    shapes = {name: value.shape for name, value in WEIGHTS.items()}
    norms = {name: float(np.linalg.norm(value)) for name, value in WEIGHTS.items()}
    check = TensorCheck("fp16", 10**6, shapes, norms, True, str(weights))
    manifest = split(data, 1024, "t")
    bench.receiver.obey(Receive(1, AGENT, manifest, str(bench.path), check), 0.0)
    bench.send(*slices(manifest, data))
    whole = bench.reports[-1]
    assert isinstance(whole, Whole)
    return whole


def test_the_tensors_of_an_update_are_decoded_checked_and_measured(
    bench: Bench, tmp_path: Path
) -> None:
    """The update is encoded as changes, so the worker reads the weights that the agent received."""
    found = examine(bench, encode_trained(0.5), tmp_path / "x.weights").examined
    assert found is not None
    assert (found.header.agent, found.header.samples, found.header.tensors) == (AGENT, 10, {})
    assert found.header.notes == {"labels": [1], "loss": 1.0}
    assert found.changes == {"weights": pytest.approx(0.5 * math.sqrt(11))}


def test_an_update_is_decoded_and_measured_with_encoded_weights(
    bench: Bench, tmp_path: Path
) -> None:
    """The device received w rounded to 1365/4096, and moved each entry by 0.5."""
    third = {"w": np.full((2, 4), np.float32(1 / 3))}
    path, encoded = tmp_path / "x.weights", encode_weights(third, "fp16")
    path.write_bytes(b"".join(pack_weights({}, encoded, "fp16")))
    moved = {"w": np.full((2, 4), np.float32(1365 / 4096 + 0.5))}
    made = Update(RUN, 1, 1, AGENT, "train", SMALL, "r0", 10, 1, moved, {})
    data = b"".join(encode_update(made, find_codec("raw"), {}))
    check = TensorCheck("raw", 10**6, {"w": (2, 4)}, {"w": 1.0}, True, str(path), "fp16")
    manifest = split(data, 1024, "t")
    bench.receiver.obey(Receive(1, AGENT, manifest, str(bench.path), check), 0.0)
    bench.send(*slices(manifest, data))
    whole = bench.reports[-1]
    assert isinstance(whole, Whole)
    assert whole.examined is not None
    assert whole.examined.changes == {"weights": 0.5 * math.sqrt(8)}


@pytest.mark.parametrize("data", [encode_trained(60_000.0), encode_trained(1.0)[:-8], b"x" * 99])
def test_an_update_with_wrong_tensors_is_refused(bench: Bench, tmp_path: Path, data: bytes) -> None:
    found = examine(bench, data, tmp_path / "x.weights")
    assert found.examined is None
    assert found.refusal


def test_an_update_whose_codec_fails_is_refused(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Update:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(update_receiver, "decode_update", fail)
    found = examine(bench, encode_trained(0.5), tmp_path / "x.weights")
    assert found.refusal == "the codec 'fp16' failed: by nothing"


def test_without_the_weights_the_coordinator_checks_the_update(
    bench: Bench, tmp_path: Path
) -> None:
    check = TensorCheck("raw", 10**6, {}, {}, True, str(tmp_path / "gone.weights"))
    bench.receiver.obey(Receive(1, AGENT, MANIFEST, str(bench.path), check), 0.0)
    bench.send(*list_chunks())
    assert bench.reports[-1] == Whole(1)


def test_invalid_chunks_are_reported_and_after_many_the_transfer_is_ignored(bench: Bench) -> None:
    bench.order()
    wrong = replace(list_chunks()[0], crc32=0)
    bench.send(wrong)
    assert isinstance(bench.reports[-1], Invalid)
    assert not bench.reports[-1].malformed
    bench.send(*[wrong] * (MOST_INVALID + 10))
    assert sum(isinstance(one, Invalid) for one in bench.reports) == MOST_INVALID


def test_what_cannot_be_decoded_is_reported_as_malformed(bench: Bench) -> None:
    bench.order()
    bench.agent.publish(topics.chunk(topics.upload(RUN, AGENT, "t"), 0), b"no message")
    bench.send()
    assert isinstance(bench.reports[-1], Invalid)
    assert bench.reports[-1].malformed


def test_a_disk_that_fails_does_not_end_the_worker(bench: Bench, tmp_path: Path) -> None:
    bench.receiver.obey(Receive(1, AGENT, MANIFEST, str(tmp_path / "none" / "x.update")), 0.0)
    assert [type(one).__name__ for one in bench.reports] == ["Failed"]
    assert not bench.receiver.busy


def test_a_worker_of_a_displaced_coordinator_leaves_a_whole_update_to_the_later_one(
    memory: MemoryBroker, tmp_path: Path
) -> None:
    """Both write the same file, and the one that renames it second would fail."""
    leading = [True]
    bench = Bench(memory, tmp_path)
    bench.receiver = UpdateReceiver(
        bench.link, RUN, EPOCH, bench.reports.append, leads=lambda: leading[0]
    )
    bench.order()
    bench.send(*list_chunks()[:3])
    leading[0] = False
    bench.send(*list_chunks()[3:])
    assert not bench.path.exists()
    assert not any(isinstance(one, Whole) for one in bench.reports)
