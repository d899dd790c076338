"""Define the record of a codec, which encodes the tensors of trained updates, and encode an update
with one: its fields as a header, and its tensors.

Batch norm statistics and scores are sent without a codec. Weights for devices have few codecs of
their own (`federated.wire.codecs.weights`): an error in weights is in every update of the round.

A lossy codec should encode changes: of each weight, its trained minus its received value. The error
is then relative to what training changed, which is small beside the weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed, MissingExtra, Refused, WireError
from federated.task import Update
from federated.wire import tensors

__all__ = [
    "Codec",
    "Compression",
    "Tensors",
    "decode_tensors",
    "decode_update",
    "encode_tensors",
    "encode_update",
    "find_change",
    "is_installed",
    "is_received",
    "join_encoded",
    "pack_update",
]

Tensors = Mapping[str, NDArray[Any]]

VARIATE = "c/"  # prefix of a variate, see `federated.task.Recipe.variate`


@dataclass(frozen=True)
class Compression:
    """A lossless compression of whole encoded updates.

    extra: the extra of this project that provides it.
    load: imports it. Raises MissingExtra; devices do not offer codecs with it then.
    compress: returns a compressed blob.
    decompress: returns the blob. Raises Malformed for one of more bytes than the limit, before they
        are allocated.
    """

    extra: str
    load: Callable[[], object]
    compress: Callable[[memoryview], bytes]
    decompress: Callable[[bytes | memoryview, int], bytes]


@dataclass(frozen=True)
class Codec:
    """A codec. Both ends need it; the run's card names it.

    name: the value of `wire.codec`.
    help: its effect and its loss, one line for the table in docs/operations.md.
    layout: the arrays that `encode` returns, one line for the table in docs/protocol.md.
    encode: converts float32 tensors to arrays of any shape with a dtype of
        `federated.wire.tensors.DTYPES`; view arrays of other dtypes as uint8. Raises Refused for
        values that it cannot represent; the task then fails with this reason.
    decode: converts received arrays to float32 tensors with the names and shapes that `encode`
        got. It must not trust them, and raises Malformed for invalid ones before it allocates
        anything.
    size: returns the encoded bytes of a number of float32 values, without names and shapes and
        before compression; at most four per value.
    changes: whether it encodes the changes of the weights instead of the trained weights.
    feedback: whether a device adds what it left out of an update to its next one
        (`federated.device.error_feedback`); only for codecs that encode changes. Such a codec
        encodes each tensor by itself: of several, it returns what `join_encoded` makes of each.
    compression: of the encoded update; None: none.
    """

    name: str
    help: str
    layout: str
    encode: Callable[[Tensors], Tensors]
    decode: Callable[[Tensors], Tensors]
    size: Callable[[int], int]
    changes: bool = False
    feedback: bool = False
    compression: Compression | None = None


def is_installed(codec: Codec) -> bool:
    """Return True if the compression of a codec is installed, or it has none."""
    try:
        if codec.compression:
            codec.compression.load()
    except MissingExtra:
        return False
    return True


def encode_update(update: Update, codec: Codec, received: Tensors) -> Sequence[bytes | memoryview]:
    """Encode an update, in pieces that may be views of its tensors. Raises Refused for values that
    the codec cannot represent, and if the codec fails.

    received: the weights that the device received.
    """
    encoded = encode_tensors(update.tensors, codec, received)
    return pack_update(update, encoded, codec)


def encode_tensors(trained: Tensors, codec: Codec, received: Tensors) -> Tensors:
    """Encode trained tensors, before compression. Raises Refused."""
    if codec.changes:
        trained = {name: find_change(name, value, received) for name, value in trained.items()}
    with _refuse_failures(codec):
        return codec.encode(trained)


def join_encoded(encoded: Sequence[Tensors]) -> Tensors:
    """Return the arrays of tensors that were encoded one by one. Names that start with `/` are of
    arrays that describe all tensors: those of each follow one another. Raises Refused if another
    name occurs twice.
    """
    found: dict[str, list[NDArray[Any]]] = {}
    for name, value in itertools.chain.from_iterable(one.items() for one in encoded):
        found.setdefault(name, []).append(value)
        if len(found[name]) > 1 and not name.startswith("/"):
            raise Refused(
                f"the codec returns the array {name} for more than one tensor: start its name "
                "with / if it describes all tensors"
            )
    return {
        name: np.concatenate(values) if name.startswith("/") else values[0]
        for name, values in found.items()
    }


def pack_update(update: Update, encoded: Tensors, codec: Codec) -> Sequence[bytes | memoryview]:
    """Return the pieces of an update with encoded tensors, compressed if the codec compresses.
    Raises Refused.
    """
    header = msgspec.to_builtins(replace(update, tensors={}))
    with _refuse_failures(codec):
        if codec.compression is None:
            return tensors.pieces(header, encoded)
        return (codec.compression.compress(tensors.encode(header, encoded)),)


@contextmanager
def _refuse_failures(codec: Codec) -> Iterator[None]:
    try:
        yield
    except (WireError, MemoryError):
        raise
    except Exception as error:  # of another package's codec
        raise Refused(f"codec {codec.name}: {type(error).__name__}: {error}") from error


def decode_update(
    buffer: bytes | memoryview, codec: Codec, limit: int, received: Tensors
) -> Update:
    """Decode an update. Its tensors may be views of the buffer. Raises WireError.

    limit: the most bytes of a compressed update, decompressed.
    received: the weights that the device received.
    """
    if codec.compression:
        buffer = codec.compression.decompress(buffer, limit)
    header, sent = tensors.decode(buffer)
    try:
        update = msgspec.convert(header, Update)
    except msgspec.ValidationError as error:
        raise Malformed(f"header of an update: {error}") from error
    return replace(update, tensors=decode_tensors(sent, codec, received))


def decode_tensors(encoded: Tensors, codec: Codec, received: Tensors) -> Tensors:
    """Decode tensors to trained ones, after decompression. Raises Malformed."""
    try:
        found = codec.decode(encoded)
        if codec.changes:
            found = {
                name: value + received[name] if _has_change(name, value, received) else value
                for name, value in found.items()
            }
        return found
    except WireError:
        raise
    except Exception as error:  # of another package's codec: one agent must not end the run
        raise Malformed(f"codec {codec.name}: {type(error).__name__}: {error}") from error


def find_change(name: str, value: NDArray[Any], received: Tensors) -> NDArray[Any]:
    """Return the change of a tensor, or its value if it has none."""
    return value - received[name] if _has_change(name, value, received) else value


def is_received(name: str, value: NDArray[Any], received: Tensors) -> bool:
    """Return True if the device received a tensor of this name and shape."""
    known = received.get(name)
    return known is not None and known.shape == value.shape and known.dtype == np.float32


def _has_change(name: str, value: NDArray[Any], received: Tensors) -> bool:
    """Return True if the change of a tensor is encoded. What a device sends of a variate is its
    change already.
    """
    return not name.startswith(VARIATE) and is_received(name, value, received)
