"""What a coordinator and its agents say to each other: frozen records, each field of a type that is
checked (`federated.wire.fields`).

A profile and a task are messages too (`federated.task`), and so is what is said of releases
(`federated.wire.release_files`); how they all travel is in `federated.wire.envelope`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from federated.task import Card, Profile, Task, Work
from federated.wire.fields import (
    AgentName,
    Crc,
    Digest,
    Name,
    Natural,
    SubmodelName,
    Text,
    Transfer,
    Word,
)
from federated.wire.release_files import Release, Serving
from federated.wire.topics import UNOWNED
from models.submodel import Network, Submodel

__all__ = [
    "JOINING",
    "MAX_CHUNK",
    "MIN_CHUNK",
    "Abort",
    "Chunk",
    "Echo",
    "Failure",
    "Goodbye",
    "Grant",
    "Heartbeat",
    "Manifest",
    "Message",
    "Offer",
    "Receipt",
    "Refusal",
    "Run",
    "Status",
]

JOINING = "joining"  # what a Refusal is about if it turns an agent away
MIN_CHUNK = 1 << 10
MAX_CHUNK = 64 << 20
NAMES = 1 << 15  # bytes of a profile's texts and labels, which have lengths of their own
# bytes of a number and of what says how long the name beside it is: 9 and 3 at the most
NUMBER = 16


@dataclass(frozen=True)
class Manifest:
    """What a transfer holds: `size` bytes in chunks of `chunk` bytes (the last may be shorter),
    with a sha256 over all.
    """

    transfer: Transfer
    size: Natural
    chunk: Annotated[int, Meta(ge=MIN_CHUNK, le=MAX_CHUNK)]
    sha256: Digest

    @property
    def total(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)


@dataclass(frozen=True)
class Chunk:
    """Chunk `index` of `total` of a transfer of `size` bytes; crc32 over `data`."""

    transfer: Transfer
    index: Natural
    total: Natural
    size: Natural
    crc32: Crc
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK)]


@dataclass(frozen=True)
class Grant:
    """The receiver's bitmap of a transfer (bit i % 8 of byte i // 8, from the least), and whether
    the sender may send now.
    """

    transfer: Transfer
    have: bytes
    open: bool


@dataclass(frozen=True)
class Receipt:
    """The end of a transfer: spooled and accepted, or not and why."""

    transfer: Transfer
    accepted: bool
    reason: Text = ""


@dataclass(frozen=True)
class Run:
    """Retained card of a run, by which an agent measures itself before it joins.

    session: of the coordinator's process; a new one means that it came back, and goes on with the
    tasks of before.
    calibration: submodels to time at `batch` examples; data: what a device's data must look like.
    settings, menu: of the method, where it surveys the devices that join; empty otherwise.
    codec: by which the tensors of trained updates are encoded.
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

    @property
    def survey_limit(self) -> int:
        """Bytes that a device's survey may take, in msgpack: a number of each class and one of each
        submodel by its name, and 1 KiB beside them.
        """
        classes = self.network.outputs if self.network is not None else 0
        return 1024 + NUMBER * classes + (UNOWNED + NUMBER) * len(self.menu)

    @property
    def profile_limit(self) -> int:
        """Bytes that a profile may take without its timings: its survey, two moments of each
        channel and of each value, and its names.

        Before the network is known, they are as many as fit a message.
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
    """Retained birth and last will of an agent; session: of the agent's process. paused: why it
    takes no task at present; empty where it does.
    """

    agent: AgentName
    session: Name
    online: bool
    paused: Text = ""


@dataclass(frozen=True)
class Heartbeat:
    """What an agent does at this moment; loss: of the present work, NaN where there is none."""

    agent: AgentName
    session: Name
    state: Word
    round: Natural
    loss: float = math.nan
    work: Word = ""
    step: Natural = 0
    steps: Natural = 0


@dataclass(frozen=True)
class Offer:
    """An update that is ready to be sent; asked again, it asks for the bitmap."""

    manifest: Manifest
    run: Name
    round: Natural
    attempt: Natural
    work: Work
    submodel: SubmodelName


@dataclass(frozen=True)
class Failure:
    """A task that came to nothing, and why. paused: the device may not work now, or has no room;
    another try may succeed.
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
    """Tasks up to this round and attempt are no longer wanted."""

    round: Natural
    attempt: Natural
    reason: Text


@dataclass(frozen=True)
class Echo:
    """A device's question whether anyone hears it, at `sent` by its clock; the coordinator says it
    back, with its own time. Seconds since 1970.
    """

    agent: AgentName
    sent: float
    time: float = 0.0


@dataclass(frozen=True)
class Goodbye:
    """The run is over."""

    reason: Text


@dataclass(frozen=True)
class Refusal:
    """An agent, or what it said `about` something, is turned away."""

    reason: Text
    about: Text = ""


_Some: TypeAlias = Abort | Chunk | Echo | Failure | Goodbye | Grant | Heartbeat | Manifest
Message: TypeAlias = (
    _Some | Offer | Profile | Receipt | Refusal | Release | Run | Serving | Status | Task
)
