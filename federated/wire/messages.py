"""Control messages: frozen records in a msgpack envelope `{"v": protocol, "kind": name, "body": fields}`.

A message is checked field by field before anyone sees it. Fields that this version does not know are ignored, so
that a later version may add some; a change of meaning raises `PROTOCOL`, and peers of another version are refused
with a reason instead of a decoding error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgpack
import msgspec
from msgspec import Meta

from federated.errors import Malformed, ProtocolMismatch
from federated.task import Card, Profile, Task, Update, Work
from federated.wire import topics
from models.submodel import Network, Submodel

__all__ = [
    "MAX_CHUNK",
    "MAX_MESSAGE",
    "MESSAGES",
    "MIN_CHUNK",
    "PROTOCOL",
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
    "Release",
    "Run",
    "Serving",
    "Status",
    "Version",
    "decode",
    "encode",
]

PROTOCOL = 1
MIN_CHUNK = 1 << 10
MAX_CHUNK = 64 << 20
MAX_MESSAGE = 1 << 20  # bytes of any but a chunk (a release for 4,600 agents of the longest names): read, it takes up to 80 times that

_Name = Annotated[str, Meta(pattern=topics.NAME)]
_Agent = Annotated[str, Meta(pattern=topics.AGENT)]
_SubmodelName = Annotated[str, Meta(pattern=topics.SUBMODEL)]
_Transfer = Annotated[str, Meta(pattern=topics.TRANSFER)]
_Text = Annotated[str, Meta(max_length=1 << 14)]
_Word = Annotated[str, Meta(max_length=128)]
_Natural = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Version = Annotated[str, Meta(pattern=topics.VERSION)]
_VersionOrNone = Annotated[str, Meta(pattern=rf"^\Z|{topics.VERSION}")]
_SubmodelOrNone = Annotated[str, Meta(pattern=rf"^\Z|{topics.SUBMODEL}")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Crc = Annotated[int, Meta(ge=0, lt=1 << 32)]


@dataclass(frozen=True)
class Manifest:
    """What a transfer holds: `size` bytes in chunks of `chunk` bytes (the last may be shorter), with a sha256 over all."""

    transfer: _Transfer
    size: _Natural
    chunk: Annotated[int, Meta(ge=MIN_CHUNK, le=MAX_CHUNK)]
    sha256: _Digest

    @property
    def total(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)


@dataclass(frozen=True)
class Chunk:
    """Chunk `index` of `total` of a transfer of `size` bytes; crc32 over `data`."""

    transfer: _Transfer
    index: _Natural
    total: _Natural
    size: _Natural
    crc32: _Crc
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK)]


@dataclass(frozen=True)
class Grant:
    """The receiver's bitmap of a transfer (bit i % 8 of byte i // 8, from the least), and whether the sender may send now."""

    transfer: _Transfer
    have: bytes
    open: bool


@dataclass(frozen=True)
class Receipt:
    """The end of a transfer: spooled and accepted, or not and why."""

    transfer: _Transfer
    accepted: bool
    reason: _Text = ""


@dataclass(frozen=True)
class Run:
    """Retained card of a run, by which an agent measures itself before it joins.

    session: of the coordinator's process; a new one means that it came back, and goes on with the tasks of before.
    calibration: submodels to time at `batch` examples; data: what a device's data must look like.
    settings, menu: of the method, where it surveys the devices that join; empty otherwise.
    """

    run: _Name
    method: _Word
    model: _Word
    network: Network | None
    calibration: tuple[Submodel, ...]
    batch: Annotated[int, Meta(ge=1)]
    session: _Name
    data: Card | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    menu: tuple[Submodel, ...] = ()


@dataclass(frozen=True)
class Status:
    """Retained birth and last will of an agent; session: of the agent's process. paused: why it takes no task at present; empty where it does."""

    agent: _Agent
    session: _Name
    online: bool
    paused: _Text = ""


@dataclass(frozen=True)
class Heartbeat:
    """What an agent does at this moment; loss: of the present work, NaN where there is none."""

    agent: _Agent
    session: _Name
    state: _Word
    round: _Natural
    loss: float = math.nan
    work: _Word = ""
    step: _Natural = 0
    steps: _Natural = 0


@dataclass(frozen=True)
class Offer:
    """An update that is ready to be sent; asked again, it asks for the bitmap."""

    manifest: Manifest
    run: _Name
    round: _Natural
    attempt: _Natural
    work: Work
    submodel: _SubmodelName


@dataclass(frozen=True)
class Failure:
    """A task that came to nothing, and why. paused: it was not tried, since the device is not to work now."""

    run: _Name
    round: _Natural
    attempt: _Natural
    work: Work
    submodel: _SubmodelName
    reason: _Text
    paused: bool = False


@dataclass(frozen=True)
class Abort:
    """Tasks up to this round and attempt are no longer wanted."""

    round: _Natural
    attempt: _Natural
    reason: _Text


@dataclass(frozen=True)
class Echo:
    """A device's question whether anyone hears it, at `sent` by its clock; the coordinator says it back, with its own time. Seconds since 1970."""

    agent: _Agent
    sent: float
    time: float = 0.0


@dataclass(frozen=True)
class Goodbye:
    """The run is over."""

    reason: _Text


@dataclass(frozen=True)
class Refusal:
    """An agent, or what it said `about` something, is turned away."""

    reason: _Text
    about: _Text = ""


@dataclass(frozen=True)
class Version:
    """A released folder of files, told by its manifest: name: the first digits of that file's sha256; size: its bytes.

    round: of the run that the networks are of. submodels: that it holds. assignment: which of them each agent is to use.
    """

    name: _Version
    round: _Natural
    sha256: _Digest
    size: _Natural
    submodels: tuple[_SubmodelName, ...]
    assignment: dict[_Agent, _SubmodelName] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """Retained card of what a run released: stable is for all, canary for these agents first. None: there is no such version."""

    run: _Name
    stable: Version | None = None
    canary: Version | None = None
    agents: tuple[_Agent, ...] = ()


@dataclass(frozen=True)
class Serving:
    """Retained report of an agent that answers. session: of its process.

    version, submodel, variant, provider: what it answers with; empty while it has nothing. p50, p90: seconds of one answer, measured on
    this device as it took the version up. accuracy: on `examples` held-out ones of its own; None without. answered, failed: requests since its start.
    p90_before, accuracy_before: the same of the version `before`, measured in the same minute.
    refused: a later version that it did not take up, and goes on without, for this reason.
    """

    agent: _Agent
    session: _Name
    version: _VersionOrNone = ""
    submodel: _SubmodelOrNone = ""
    variant: _Word = ""
    provider: _Word = ""
    p50: float | None = None
    p90: float | None = None
    accuracy: float | None = None
    examples: _Natural = 0
    before: _VersionOrNone = ""
    p90_before: float | None = None
    accuracy_before: float | None = None
    answered: _Natural = 0
    failed: _Natural = 0
    refused: _VersionOrNone = ""
    reason: _Text = ""


_Some: TypeAlias = Abort | Chunk | Echo | Failure | Goodbye | Grant | Heartbeat | Manifest
Message: TypeAlias = _Some | Offer | Profile | Receipt | Refusal | Release | Run | Serving | Status | Task

MESSAGES: dict[str, type[Message]] = {
    "abort": Abort,
    "chunk": Chunk,
    "echo": Echo,
    "failure": Failure,
    "goodbye": Goodbye,
    "grant": Grant,
    "heartbeat": Heartbeat,
    "manifest": Manifest,
    "offer": Offer,
    "profile": Profile,
    "receipt": Receipt,
    "refusal": Refusal,
    "release": Release,
    "run": Run,
    "serving": Serving,
    "status": Status,
    "task": Task,
}

for _type in (*MESSAGES.values(), Update):
    msgspec.msgpack.Decoder(_type)  # msgspec learns a type when it first converts one, and crashes where two threads do so at once (0.22)


class _Envelope(msgspec.Struct):
    """Seen through without making anything of what is inside; every length is that of what is there."""

    v: msgspec.Raw
    kind: msgspec.Raw
    body: msgspec.Raw


_ENVELOPE, _CHUNK = msgspec.msgpack.Decoder(_Envelope), msgspec.msgpack.Decoder(Chunk)
_KINDS: dict[type[Message], str] = {type_: kind for kind, type_ in MESSAGES.items()}
# The largest of each msgpack type that a message may hold; a length beyond it is refused before anything is allocated.
_LIMITS = {"max_str_len": 1 << 20, "max_bin_len": MAX_CHUNK, "max_array_len": 1 << 16, "max_map_len": 1 << 16, "max_ext_len": 0}
_OUTSIDE = 256  # bytes of a version and a kind, whoever's


def encode(message: Message) -> bytes:
    """The payload of a message."""
    body = msgspec.to_builtins(message, builtin_types=(bytes,))
    payload: bytes = msgpack.packb({"v": PROTOCOL, "kind": _KINDS[type(message)], "body": body}, use_bin_type=True)
    return payload


def decode(payload: bytes | bytearray | memoryview) -> Message:
    """The message of a payload. Raises ProtocolMismatch for another version, Malformed for everything else that is wrong."""
    envelope = _opened(payload)
    if (v := _unpack(envelope.v)) != PROTOCOL or isinstance(v, bool):
        raise ProtocolMismatch(f"the peer speaks protocol {_glimpse(v)}, this side {PROTOCOL}: install the same version on both")
    kind = _unpack(envelope.kind)
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise Malformed(f"message: expected a kind among {', '.join(MESSAGES)}, found {_glimpse(kind)}")
    if kind != "chunk" and len(payload) > MAX_MESSAGE:
        raise Malformed(f"message '{kind}': expected at most {MAX_MESSAGE} bytes, found {len(payload)}")
    message: Message
    try:
        if kind == "chunk":
            message = _CHUNK.decode(envelope.body)
        else:
            message = msgspec.convert(_unpack(envelope.body), MESSAGES[kind], strict=True, builtin_types=(bytes,))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"message '{kind}': {error}") from None
    _check(kind, message)
    return message


def _opened(payload: bytes | bytearray | memoryview) -> _Envelope:
    try:
        envelope = _ENVELOPE.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"message of {len(payload)} bytes: expected a msgpack map of v, kind and body, found: {str(error)[:200]}") from None
    if len(outside := bytes(envelope.v) + bytes(envelope.kind)) > _OUTSIDE:
        raise Malformed(f"message: expected a version and a kind, found {len(outside)} bytes")
    return envelope


def _unpack(part: msgspec.Raw) -> Any:
    try:
        return msgpack.unpackb(memoryview(part), raw=False, strict_map_key=True, **_LIMITS)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise Malformed(f"message: expected msgpack, found {type(error).__name__}: {str(error)[:200]}") from None


def _check(kind: str, message: Message) -> None:
    """What the types of records that are not ours to annotate leave open: names that become topic levels and files, sizes, times."""
    match message:
        case Task():
            wrong = not 0 < message.deadline < math.inf or min(message.round, message.attempt, message.size) < 0
            names = [(message.run, topics.NAME), (message.agent, topics.AGENT), (message.version, topics.NAME), (message.digest, _SHA256)]
            names.append((_submodel_name(kind, message.submodel), topics.SUBMODEL))
        case Profile():
            wrong = min(message.memory, message.chunk) < 0 or not 0 <= message.cpus < math.inf
            wrong = wrong or not (message.uplink == 0 or 1 <= message.uplink < math.inf)
            wrong = wrong or any(not 0 <= timing.seconds < math.inf for timing in message.timings)
            names = [(message.agent, topics.AGENT)]
        case Release():
            versions = [version for version in (message.stable, message.canary) if version is not None]
            wrong = any(not version.sha256.startswith(version.name) for version in versions)
            names = []
        case Serving():
            times = [seconds for seconds in (message.p50, message.p90, message.p90_before) if seconds is not None]
            shares = [share for share in (message.accuracy, message.accuracy_before) if share is not None]
            wrong = not all(0 <= seconds < math.inf for seconds in times) or not all(-math.inf < share <= 1 for share in shares)
            names = []
        case _:
            return
    for name, pattern in names:
        if not re.match(pattern, name):
            raise Malformed(f"message '{kind}': expected a name like {pattern}, found {name[:100]!r}")
    if wrong:
        raise Malformed(f"message '{kind}': expected sizes, times and digests that can be, found {_glimpse(message)}")


_SHA256 = r"^[0-9a-f]{64}\Z"


def _submodel_name(kind: str, submodel: Submodel) -> str:
    if not 0 < submodel.width <= 1 or submodel.branches < 1:
        raise Malformed(f"message '{kind}': expected a submodel of a width in (0, 1] and at least one branch, found {_glimpse(submodel)}")
    return submodel.name


def _glimpse(value: object) -> str:
    return repr(value)[:120]
