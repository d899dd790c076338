"""Encode the weights that devices download, and decode them.

Only tensors of float32 with two or more axes are encoded: the others (biases, gains and statistics
of norms, counters) are few values, and some need all their digits. Tensors with `/` in their name
are no weights, but what a method adds for training, and stay as they are. So does a tensor with a
value that the codec cannot represent.

Encoded tensors have the prefix `encoded/`: a device that ignores `Task.weights_codec` finds none of
the tensors that it needs, and refuses the task.

The rounding stays out of the model. A device trains the decoded weights, and the coordinator adds
its change to the exact ones (`restore_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed, Refused
from federated.wire import tensors
from federated.wire.codecs.catalogue import CODECS
from federated.wire.codecs.codec import Tensors, is_installed
from federated.wire.codecs.raw import RAW
from federated.wire.field_types import WeightsCodec

__all__ = [
    "choose_weights_codec",
    "decode_arrays",
    "decode_weights",
    "encode_weights",
    "list_weights_codecs",
    "pack_weights",
    "restore_weights",
]

ENCODED = "encoded/"
# most bytes of what a device decompresses, whatever size the task claims: of any file, and more for
# each byte of the file. Trained weights compress to a half.
SMALL, RATIO = 1 << 20, 64


def list_weights_codecs() -> tuple[str, ...]:
    """Return the names of the codecs with which this machine can decode weights."""
    return tuple(name for name in get_args(WeightsCodec) if is_installed(CODECS[name]))


def choose_weights_codec(wanted: str, known: Sequence[str]) -> str:
    """Return the codec of the weights for a device. wanted: that of the run. known: those with
    which the device can decode weights.
    """
    return wanted if wanted in known else RAW.name


def encode_weights(weights: Tensors, codec: str) -> Tensors:
    """Return the arrays to send for weights."""
    found = dict[str, NDArray[Any]]()
    for name, value in weights.items():
        made = _encode(name, value, codec)
        found[name if made is None else ENCODED + name] = value if made is None else made
    return found


def _encode(name: str, value: NDArray[Any], codec: str) -> NDArray[Any] | None:
    """Return an encoded tensor; None if it is sent as it is."""
    if codec == RAW.name or not _is_encodable(name, value):
        return None
    try:
        return CODECS[codec].encode({name: value})[name]
    except Refused:
        return None


def _is_encodable(name: str, value: NDArray[Any]) -> bool:
    return "/" not in name and value.ndim >= 2 and value.dtype == np.float32


def pack_weights(
    meta: Mapping[str, Any], encoded: Tensors, codec: str
) -> Sequence[bytes | memoryview]:
    """Return the file of encoded weights in pieces."""
    if (compression := CODECS[codec].compression) is None:
        return tensors.pieces(meta, encoded)
    return (compression.compress(tensors.encode(meta, encoded)),)


def decode_weights(buffer: bytes | memoryview, codec: str, most: int) -> Tensors:
    """Return the weights in a file. Those that were not encoded are views of the buffer.

    codec: as a message names it.
    most: bytes of the weights if nothing is encoded.
    Raises Malformed, Refused, MissingExtra.
    """
    if codec not in get_args(WeightsCodec):
        raise Refused(
            f"weights: expected one of the codecs {', '.join(get_args(WeightsCodec))}, found "
            f"{codec}"
        )
    if compression := CODECS[codec].compression:
        # the table of tensors is longer by the prefixes, but shorter than all values
        most = min(2 * most, SMALL + RATIO * len(buffer))
        buffer = compression.decompress(buffer, most)
    _, sent = tensors.decode(buffer)
    return decode_arrays(sent, codec)


def decode_arrays(sent: Tensors, codec: str) -> Tensors:
    """Return the weights in the arrays that `encode_weights` made. Raises Malformed."""
    if codec == RAW.name:
        return sent
    found = {name: value for name, value in sent.items() if not name.startswith(ENCODED)}
    encoded = {name.removeprefix(ENCODED): value for name, value in sent.items()}
    encoded = {name: value for name, value in encoded.items() if name not in found}
    if len(found) + len(encoded) != len(sent):
        raise Malformed("weights: expected each tensor once, found one both encoded and not")
    return {**found, **CODECS[codec].decode(encoded)}


def restore_weights(trained: Tensors, received: Tensors, exact: Tensors) -> Tensors:
    """Return trained tensors as if the device had received the exact weights: what it changed,
    added to them.
    """
    return {
        name: value + (exact[name] - received[name])
        if name in exact and _is_encodable(name, exact[name])
        else value
        for name, value in trained.items()
    }
