"""Encode and decode messages in a msgpack envelope `{"v": protocol, "kind": name, "body": fields}`.

A coordinator's messages also have an `epoch`: later coordinators of a run have higher ones. All but
chunks, which have a sum of their own, have a `crc32` of kind, epoch and body, so that a damaged
message is rejected and not believed; a peer of another implementation may omit it.

Decoding checks every field. Unknown fields are ignored, so that a later version may add some. A
change of meaning increments `PROTOCOL`. A message states the lowest version that reads it as it is
meant, so that peers of different versions exchange all messages that did not change. Other messages
are rejected with both versions.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from typing import Any, get_type_hints

import msgpack
import msgspec

from federated.errors import Malformed, ProtocolMismatch
from federated.safe_text import make_safe
from federated.task import Profile, Task, Update
from federated.wire import topics
from federated.wire.field_types import Natural, Text
from federated.wire.messages import (
    MAX_CHUNK,
    Abort,
    Chunk,
    Echo,
    Failure,
    Goodbye,
    Grant,
    Heartbeat,
    Manifest,
    Message,
    Offer,
    Receipt,
    Refusal,
    Run,
    Status,
)
from federated.wire.release_messages import Installed, Release, Serving, SoftwareCard

__all__ = [
    "ADDRESSES",
    "CHANGES",
    "MAX_MESSAGE",
    "MESSAGES",
    "OLDEST",
    "PROTOCOL",
    "decode",
    "decode_with_epoch",
    "encode",
]

OLDEST = 3  # the lowest version that is still read; version 3 renamed topics
ADDRESSES = 4  # the version since which manifests and grants may name an address
CHANGES = 4  # the version since which codecs that encode changes send variates as they are
PROTOCOL = 4
# bytes of any message but a chunk (a release for 4,000 agents with the longest names); decoded, it
# takes up to 80 times as many
MAX_MESSAGE = 1 << 20

MESSAGES: dict[str, type[Message]] = {
    "abort": Abort,
    "chunk": Chunk,
    "echo": Echo,
    "failure": Failure,
    "goodbye": Goodbye,
    "grant": Grant,
    "heartbeat": Heartbeat,
    "installed": Installed,
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
    "wanted": SoftwareCard,
}

for _type in (*MESSAGES.values(), Update):
    # msgspec 0.22 prepares a type when it first converts one, and crashes if two threads do so at
    # once
    msgspec.msgpack.Decoder(_type)


class _Envelope(msgspec.Struct):
    """An envelope whose parts are not decoded yet. All lengths in it are checked against the
    payload.
    """

    v: msgspec.Raw
    kind: msgspec.Raw
    body: msgspec.Raw
    epoch: Natural = 0
    crc32: Natural | None = None


_ENVELOPE, _CHUNK = msgspec.msgpack.Decoder(_Envelope), msgspec.msgpack.Decoder(Chunk)
_KINDS: dict[type[Message], str] = {type_: kind for kind, type_ in MESSAGES.items()}
_TEXTS = {
    type_: [
        name for name, hint in get_type_hints(type_, include_extras=True).items() if hint == Text
    ]
    for type_ in _KINDS
}
# Largest values of each msgpack type; larger ones are rejected before anything is allocated.
_LIMITS = {
    "max_str_len": 1 << 20,
    "max_bin_len": MAX_CHUNK,
    "max_array_len": 1 << 16,
    "max_map_len": 1 << 16,
    "max_ext_len": 0,
}
# versions and kinds by their shortest encoding
_VERSIONS = {msgspec.msgpack.encode(v): v for v in range(OLDEST, PROTOCOL + 1)}
_ENCODED = {msgspec.msgpack.encode(kind): kind for kind in MESSAGES}
_OUTSIDE = 256  # bytes of a version and a kind
_UNSEEN = {"options", "settings", "survey"}  # fields with a method's plain values


def encode(message: Message, epoch: int = 0) -> bytes:
    """Return the payload of a message. Texts are made safe to show, and cut to the length
    that `decode` accepts.

    epoch: of the coordinator that sends it; 0: none.
    """
    kind = _KINDS[type(message)]
    parts: dict[str, Any] = {"v": _get_version(message), "kind": kind}
    if isinstance(message, Chunk):
        parts["body"] = message  # so that its bytes are copied once
    else:
        texts = {name: getattr(message, name) for name in _TEXTS[type(message)]}
        changed: dict[str, Any] = {
            name: safe for name, text in texts.items() if (safe := make_safe(text)) != text
        }
        packed = msgspec.msgpack.encode(replace(message, **changed) if changed else message)
        parts["body"] = msgspec.Raw(packed)
        parts["crc32"] = _compute_crc(kind, epoch, packed)
    if epoch:
        parts["epoch"] = epoch
    return msgspec.msgpack.encode(parts)


def _get_version(message: Message) -> int:
    """Return the lowest version of the protocol that reads a message as it is meant."""
    named = isinstance(message, Manifest | Grant) and message.url
    parts = isinstance(message, Grant) and message.parts
    return ADDRESSES if named or parts else OLDEST


def _compute_crc(kind: str, epoch: int, body: bytes | msgspec.Raw) -> int:
    return zlib.crc32(body, zlib.crc32(f"{kind} {epoch}".encode()))


def decode(payload: bytes | bytearray | memoryview) -> Message:
    """Return the message of a payload, its text made safe to show. Raises ProtocolMismatch for
    another version, and Malformed for any other problem.
    """
    return decode_with_epoch(payload)[0]


def decode_with_epoch(payload: bytes | bytearray | memoryview) -> tuple[Message, int]:
    """Return as `decode` does, with the epoch of the coordinator that sent it; 0: none."""
    envelope = _open(payload)
    v = _VERSIONS.get(bytes(envelope.v)) or _unpack(envelope.v)
    if not isinstance(v, int) or isinstance(v, bool) or not OLDEST <= v <= PROTOCOL:
        raise ProtocolMismatch(
            f"the peer speaks protocol {_quote(v)}, this side {OLDEST} to {PROTOCOL}: upgrade the "
            "older of the two"
        )
    kind = _ENCODED.get(bytes(envelope.kind)) or _unpack(envelope.kind)
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise Malformed(
            f"message: expected a kind among {', '.join(MESSAGES)}, found {_quote(kind)}"
        )
    if kind != "chunk" and len(payload) > MAX_MESSAGE:
        raise Malformed(
            f"message '{kind}': expected at most {MAX_MESSAGE} bytes, found {len(payload)}"
        )
    stored = envelope.crc32
    if stored is not None and stored != _compute_crc(kind, envelope.epoch, envelope.body):
        raise Malformed(f"message '{kind}' was damaged on its way: its crc32 does not match")
    message: Message
    try:
        if kind == "chunk":
            message = _CHUNK.decode(envelope.body)
        else:
            message = msgspec.convert(
                _make_all_safe(_unpack(envelope.body)),
                MESSAGES[kind],
                strict=True,
                builtin_types=(bytes,),
            )
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"message '{kind}': {error}") from None
    _check(kind, message)
    return message, envelope.epoch


def _open(payload: bytes | bytearray | memoryview) -> _Envelope:
    try:
        envelope = _ENVELOPE.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(
            f"message of {len(payload)} bytes: expected a msgpack map of v, kind and "
            f"body, found: {str(error)[:200]}"
        ) from None
    if len(outside := bytes(envelope.v) + bytes(envelope.kind)) > _OUTSIDE:
        raise Malformed(f"message: expected a version and a kind, found {len(outside)} bytes")
    return envelope


def _unpack(part: msgspec.Raw) -> Any:
    try:
        return msgpack.unpackb(memoryview(part), raw=False, strict_map_key=True, **_LIMITS)
    except (
        ValueError,
        TypeError,
        RecursionError,
        OverflowError,
        msgpack.exceptions.UnpackException,
    ) as error:
        raise Malformed(
            f"message: expected msgpack, found {type(error).__name__}: {str(error)[:200]}"
        ) from None


def _make_all_safe(body: Any) -> Any:
    """Return a message's body with every string safe to show. Most have no other strings, which the
    body as JSON shows in a tenth of the time: JSON escapes some, and leaves the others as they are.
    """
    try:
        text = msgspec.json.encode(body).decode()
    except TypeError:  # a key that is no text, which the message's type rejects
        return _make_safe(body)
    return body if text.isprintable() and "\\" not in text else _make_safe(body)


def _make_safe(part: Any) -> Any:
    """Return a part of a message with every string safe to show, except those that only methods
    read.
    """
    kind = type(part)  # patterns would take three times as long
    if kind is str:
        return part if part.isprintable() else make_safe(part, None)
    if kind is list:
        return [_make_safe(item) for item in part]
    if kind is dict:
        return {key: item if key in _UNSEEN else _make_safe(item) for key, item in part.items()}
    return part


def _check(kind: str, message: Message) -> None:
    """Check rules that types cannot express: names that several fields form, and fields that depend
    on each other.
    """
    match message:
        case Task() if not re.match(topics.SUBMODEL, message.submodel.name):
            wrong = f"a submodel named like {topics.SUBMODEL}"
        case Profile() if 0 < message.uplink < 1:
            wrong = "an uplink of 0 (unknown) or at least 1 byte per second"
        case Release() if not all(
            version is None or version.sha256.startswith(version.name)
            for version in (message.stable, message.canary)
        ):
            wrong = "versions named after their digests"
        case _:
            return
    raise Malformed(f"message '{kind}': expected {wrong}, found {_quote(message)}")


def _quote(value: object) -> str:
    return repr(value)[:120]
