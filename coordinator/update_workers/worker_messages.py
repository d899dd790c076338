"""Define what a coordinator tells a worker and what a worker reports, and write and read both over
pipes, each as its length and MessagePack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

import msgspec
from msgspec import Struct

from coordinator.round.tensor_check import Examined, TensorCheck
from federated.wire.messages import Manifest

__all__ = [
    "Alive",
    "Damaged",
    "Drop",
    "Failed",
    "Flooded",
    "Grown",
    "Hello",
    "Invalid",
    "NoRoom",
    "Order",
    "Pause",
    "Receive",
    "Report",
    "Whole",
    "read_frames",
    "write_frame",
]

LENGTH = struct.Struct("<I")


class Hello(Struct, frozen=True, tag=True):
    """The first message to a worker.

    address: of the broker, with the coordinator's credentials.
    client_id: name of the worker at the broker.
    run: name of the run.
    epoch: of the coordinator.
    sync: whether a received update is synced to disk before it is reported.
    rate: largest number of messages per second; None: no limit.
    lock: folder of the run, whose lock the coordinator holds; empty: no other one can take over.
    holder: see `run_lock.read_holder`.
    """

    address: str
    client_id: str
    run: str
    epoch: int
    sync: bool
    rate: int | None = None
    lock: str = ""
    holder: int = 0


class Receive(Struct, frozen=True, tag=True):
    """Receive an update, or go on with it, and tell its agent which chunks are missing.

    number: of the transfer, which no other has.
    agent: its sender.
    manifest: what the agent announced.
    path: where to put the update once it is complete.
    check: how to check its tensors; None: the coordinator does.
    """

    number: int
    agent: str
    manifest: Manifest
    path: str
    check: TensorCheck | None = None


class Pause(Struct, frozen=True, tag=True):
    """Store the chunks of a transfer that are in flight, and ask for no more."""

    number: int


class Drop(Struct, frozen=True, tag=True):
    """End a transfer, and remove its files.

    path: as in `Receive`; of an update that is complete by now, but of no use.
    """

    number: int
    path: str


class Alive(Struct, frozen=True, tag=True):
    """The worker is connected and works."""


class Grown(Struct, frozen=True, tag=True):
    """A transfer has begun, or has more chunks than before. received: number of its chunks."""

    number: int
    received: int


class Whole(Struct, frozen=True, tag=True):
    """An update is complete, its digest is right, and its file is in its place.

    examined: what was found in its tensors, if they were to be checked and are right.
    refusal: why they are refused; empty if they are not, or were not checked.
    """

    number: int
    examined: Examined | None = None
    refusal: str = ""


class Damaged(Struct, frozen=True, tag=True):
    """The digest of a complete update is wrong, and its transfer starts over."""

    number: int
    reason: str


class NoRoom(Struct, frozen=True, tag=True):
    """The disk has no room for a transfer, which ends."""

    number: int


class Failed(Struct, frozen=True, tag=True):
    """The disk failed in another way."""

    number: int
    reason: str


class Invalid(Struct, frozen=True, tag=True):
    """A message was rejected. malformed: whether it could not be decoded."""

    topic: str
    reason: str
    malformed: bool


class Flooded(Struct, frozen=True, tag=True):
    """An agent fills its share of the queue, and goes on."""

    agent: str


Order: TypeAlias = Hello | Receive | Pause | Drop
Report: TypeAlias = Alive | Grown | Whole | Damaged | NoRoom | Failed | Invalid | Flooded


def write_frame(file: IO[bytes], message: Order | Report) -> None:
    """Write a message. Raises OSError if the other end is gone."""
    packed = msgspec.msgpack.encode(message)
    file.write(LENGTH.pack(len(packed)) + packed)
    file.flush()


def read_frames(file: IO[bytes], kind: Any) -> Iterator[Any]:
    """Yield the messages of a kind, `Order` or `Report`, until the other end is gone. A message
    that was cut short is lost.
    """
    decoder = msgspec.msgpack.Decoder(kind)
    while len(head := file.read(LENGTH.size)) == LENGTH.size:
        size = LENGTH.unpack(head)[0]
        packed = file.read(size)
        if len(packed) < size:
            return
        yield decoder.decode(packed)
