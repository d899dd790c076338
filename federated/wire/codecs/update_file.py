"""The file of an update: its fields as a header, and its tensors encoded with the codec."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from federated.errors import Malformed, Refused, WireError
from federated.task import Update
from federated.wire import tensors
from federated.wire.codecs.codec import Codec

__all__ = ["decode", "encode"]


def encode(update: Update, codec: Codec) -> memoryview:
    """Encode an update. Raises Refused for values that the codec cannot represent, or a codec that
    fails.
    """
    header = msgspec.to_builtins(replace(update, tensors={}))
    try:
        return tensors.encode(header, codec.encode(update.tensors))
    except (WireError, MemoryError):
        raise
    except Exception as error:  # of another package's codec
        raise Refused(f"codec {codec.name}: {type(error).__name__}: {error}") from error


def decode(buffer: bytes | memoryview, codec: Codec) -> Update:
    """Decode an update. Its tensors may be views of the buffer. Raises WireError."""
    header, sent = tensors.decode(buffer)
    try:
        update = msgspec.convert(header, Update)
    except msgspec.ValidationError as error:
        raise Malformed(f"header of an update: {error}") from error
    try:
        return replace(update, tensors=codec.decode(sent))
    except WireError:
        raise
    except Exception as error:  # of another package's codec: one agent must not end the run
        raise Malformed(f"codec {codec.name}: {type(error).__name__}: {error}") from error
