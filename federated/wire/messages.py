"""The messages between a coordinator and its agents: frozen records with checked fields
(`federated.wire.field_types`).

Further messages are in `federated.task` and `federated.wire.release_messages`.
`federated.wire.envelope` encodes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from federated.task import Card, Profile, Task, Work
from federated.wire.field_types import (
    AgentName,
    Amount,
    Crc,
    Digest,
    Name,
    Natural,
    SubmodelName,
    Text,
    Transfer,
    Url,
    Word,
)
from federated.wire.release_messages import Installed, Release, Serving, SoftwareCard
from federated.wire.topics import UNOWNED
from models.submodel import Network, Submodel

__all__ = [
    "JOINING",
    "MAX_CHUNK",
    "MIN_CHUNK",
    "Abort",
    "Chunk",
    "Condition",
    "Echo",
    "Failure",
    "Goodbye",
    "Grant",
    "Heartbeat",
    "Manifest",
    "Message",
    "Offer",
    "Part",
    "Receipt",
    "Refusal",
    "Run",
    "Status",
]

JOINING = "joining"  # `about` of a Refusal that rejects an agent
MIN_CHUNK = 1 << 10
MAX_CHUNK = 64 << 20
MAX_PARTS = 16  # of one grant, whose addresses may be long
NAMES = 1 << 15  # bytes of a profile's texts and labels, whose lengths are limited
Celsius: TypeAlias = Annotated[float, Meta(ge=-274, le=1000)]
NUMBER = 16  # bytes of a number and of the length of its name: at most 9 and 3


@dataclass(frozen=True)
class Manifest:
    """The content of a transfer.

    transfer: its name.
    size: bytes in all.
    chunk: bytes per chunk; the last one may be shorter.
    sha256: digest of all bytes, hexadecimal.
    url: address at which the bytes are downloaded by GET, and no chunks are published; empty: they
        are published in chunks.
    """

    transfer: Transfer
    size: Natural
    chunk: Annotated[int, Meta(ge=MIN_CHUNK, le=MAX_CHUNK)]
    sha256: Digest
    url: Url = ""

    @property
    def total(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)


@dataclass(frozen=True)
class Chunk:
    """A part of a transfer.

    transfer: its name.
    index: index of this chunk, from 0.
    total: number of chunks.
    size: bytes of all chunks.
    crc32: CRC-32 of `data`.
    data: the bytes; their number is the manifest's `chunk`, except in the last chunk.
    """

    transfer: Transfer
    index: Natural
    total: Natural
    size: Natural
    crc32: Crc
    data: Annotated[memoryview, Meta(max_length=MAX_CHUNK)]  # of a blob or a payload, without copy


@dataclass(frozen=True)
class Part:
    """A part of a transfer that the sender uploads with a request of its own.

    start: its first byte.
    size: bytes.
    url: address for the PUT, which permits this size for a limited time.
    """

    start: Natural
    size: Annotated[int, Meta(ge=1, lt=1 << 62)]
    url: Url


@dataclass(frozen=True)
class Grant:
    """The answer to an offer, and acknowledgement of chunks.

    transfer: of the offer.
    have: bitmap of the chunks received: chunk i is bit i % 8, from the least significant, of byte
        i // 8. Empty: no chunk if `open`, otherwise unknown.
    open: whether the sender may send now; if not, it waits for the next grant.
    url: address to which the sender uploads the bytes by PUT, instead of chunks; empty: it sends
        chunks, unless there are `parts`.
    parts: next parts that the sender uploads, instead of chunks, before it repeats its offer.
    """

    transfer: Transfer
    have: bytes
    open: bool
    url: Url = ""
    parts: Annotated[tuple[Part, ...], Meta(max_length=MAX_PARTS)] = ()


@dataclass(frozen=True)
class Receipt:
    """The end of a transfer.

    transfer: its name.
    accepted: whether the update passed all checks.
    reason: why it is rejected.
    """

    transfer: Transfer
    accepted: bool
    reason: Text = ""


@dataclass(frozen=True)
class Run:
    """Retained card of a run, which an agent needs to measure its device before it joins.

    run: name of the run.
    method: name of its method.
    model: name of its model.
    network: the whole network; None until the agents' data determine it.
    calibration: submodels to time.
    batch: examples per step to time them with.
    session: identifies the coordinator's process; a new one means that it restarted, and that
        earlier tasks continue.
    data: required form of a device's data; None: the agent describes its own.
    settings: those settings of the method that differ from their defaults.
    menu: all submodels, for a method that surveys the devices at join; otherwise empty.
    codec: name of the codec for trained updates, which the profile must list.
    heartbeat: least seconds between two heartbeats of an agent; 0: the fleet is small.
    bound, examples: settings `robust.bound` and `robust.examples`, which a gateway applies to its
        devices; nil: their defaults.
    """

    run: Name
    method: Word
    model: Word
    network: Network | None
    calibration: tuple[Submodel, ...]
    batch: Annotated[int, Meta(ge=1)]
    session: Name
    data: Card | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    menu: tuple[Submodel, ...] = ()
    codec: Word = "raw"
    heartbeat: Amount = 0.0
    bound: Amount | None = None
    examples: Amount | None = None

    @property
    def survey_limit(self) -> int:
        """Largest size of a device's survey in msgpack, bytes: a number per class, a named number
        per submodel, and 1 KiB.
        """
        classes = self.network.outputs if self.network is not None else 0
        return 1024 + NUMBER * classes + (UNOWNED + NUMBER) * len(self.menu)

    @property
    def profile_limit(self) -> int:
        """Largest size of a profile without its timings, bytes: its survey, two moments per channel
        and per value, and its names. Before the network is known, the largest size of a message.
        """
        known = self.network
        moments = (
            2 * (known.inputs[0] + (known.outputs if known.objective == "value" else 0))
            if known is not None
            else MAX_CHUNK
        )
        return NAMES + self.survey_limit + NUMBER * moments


@dataclass(frozen=True)
class Status:
    """Retained status of an agent, published at join, and as its last will.

    agent: its name.
    session: identifies its process.
    online: false in the last will, and when the agent leaves.
    paused: why it accepts no task now; empty if it does.
    """

    agent: AgentName
    session: Name
    online: bool
    paused: Text = ""


@dataclass(frozen=True)
class Condition:
    """The present condition of a device, as far as its system tells.

    celsius: temperature of the hottest sensor of the processor; None: unknown.
    throttled: whether heat or a weak power supply slows the processor; None: unknown.
    power: `mains`, `battery`, or empty if unknown.
    """

    celsius: Celsius | None = None
    throttled: bool | None = None
    power: Word = ""


@dataclass(frozen=True)
class Heartbeat:
    """The current activity of an agent.

    agent: its name.
    session: that of its status.
    state: `idle`, `download`, `send`, or the work of the task in training.
    round: of the task in training, otherwise 0.
    loss: of the last training; NaN before.
    work: of the task in training, otherwise empty.
    step: optimiser steps taken, or chunks downloaded. A change extends the task's lease.
    steps: planned optimiser steps; 0 if unknown.
    condition: of the device.
    """

    agent: AgentName
    session: Name
    state: Word
    round: Natural
    loss: float = math.nan
    work: Word = ""
    step: Natural = 0
    steps: Natural = 0
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True)
class Offer:
    """An update that is ready to be sent. A repeated offer asks for the bitmap.

    manifest: of the encoded update, with the transfer's name.
    run, round, attempt, work: of the task.
    submodel: name of the task's submodel.
    """

    manifest: Manifest
    run: Name
    round: Natural
    attempt: Natural
    work: Work
    submodel: SubmodelName


@dataclass(frozen=True)
class Failure:
    """A failed task.

    run, round, attempt, work: of the task.
    submodel: name of the task's submodel.
    reason: why it failed.
    paused: another attempt may succeed later: the device is paused, or its disk is full.
    """

    run: Name
    round: Natural
    attempt: Natural
    work: Work
    submodel: SubmodelName
    reason: Text
    paused: bool = False


@dataclass(frozen=True)
class Abort:
    """Tasks up to this round and attempt are aborted.

    round: largest round to abort.
    attempt: largest attempt to abort.
    reason: why.
    """

    round: Natural
    attempt: Natural
    reason: Text


@dataclass(frozen=True)
class Echo:
    """A connection test, which the coordinator returns with its own time.

    agent: its sender.
    sent: time of the device's clock, seconds since 1970.
    time: time of the coordinator's clock, seconds since 1970.
    """

    agent: AgentName
    sent: float
    time: float = 0.0


@dataclass(frozen=True)
class Goodbye:
    """The run is over.

    reason: why it ended.
    """

    reason: Text


@dataclass(frozen=True)
class Refusal:
    """An agent, or one of its messages, is rejected.

    reason: why.
    about: `joining` if the agent is rejected, otherwise the topic of the rejected message.
    """

    reason: Text
    about: Text = ""


_Some: TypeAlias = Abort | Chunk | Echo | Failure | Goodbye | Grant | Heartbeat | Installed
Message: TypeAlias = (
    _Some
    | Manifest
    | Offer
    | Profile
    | Receipt
    | Refusal
    | Release
    | Run
    | Serving
    | SoftwareCard
    | Status
    | Task
)
