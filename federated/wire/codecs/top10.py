"""The codec `top10-zstd`: the largest tenth of the changes of each tensor, in half precision; the
other weights stay as received (top-k sparsification: Aji and Heafield, Sparse Communication for
Distributed Gradient Descent, EMNLP 2017, section 3).

As in the paper, a device adds what was not sent to its next update
(`federated.device.error_feedback`). Small tensors, such as biases and the statistics of a norm, are
sent whole.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed, Refused
from federated.wire.codecs import fp16
from federated.wire.codecs.codec import Codec, Tensors
from federated.wire.codecs.zstd import ZSTD

__all__ = ["TOP10"]

VALUES = "/values"  # name of the array with the changes of all tensors, in order
SHARE = 10  # one of this many changes is sent
WHOLE = 1000  # values of a tensor that is sent whole


def encode(tensors: Tensors) -> Tensors:
    found: dict[str, NDArray[np.generic]] = {VALUES: np.zeros(0, np.float16)}
    values = [found[VALUES]]
    for name, value in tensors.items():
        if name == VALUES:
            raise Refused(f"tensor {name}: this name belongs to the codec top10-zstd")
        found[name] = select_largest(value)
        values.append(fp16.encode({name: value[found[name]]})[name])
    found[VALUES] = np.concatenate(values)
    return found


def select_largest(value: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return a mask of the changes of a tensor to send."""
    if value.size <= WHOLE:
        return np.ones(value.shape, np.bool_)
    kept = math.ceil(value.size / SHARE)
    chosen = np.argpartition(np.abs(value), value.size - kept, axis=None)[value.size - kept :]
    mask = np.zeros(value.size, np.bool_)
    mask[chosen] = True
    return mask.reshape(value.shape)


def decode(tensors: Tensors) -> Tensors:
    masks = dict(tensors)
    sent = masks.pop(VALUES, np.zeros(0, np.float16))
    for name, mask in masks.items():
        if mask.dtype != np.bool_:
            raise Malformed(f"tensor {name}: expected bool, found {mask.dtype.name}")
    counts = [int(np.count_nonzero(mask)) for mask in masks.values()]
    if sent.dtype != np.float16 or sent.shape != (sum(counts),):
        raise Malformed(
            f"{VALUES}: expected {sum(counts)} float16, one for each selected weight, found "
            f"{list(sent.shape)} {sent.dtype.name}"
        )
    found, start = {}, 0
    for (name, mask), count in zip(masks.items(), counts, strict=True):
        found[name] = np.zeros(mask.shape, np.float32)
        found[name][mask] = sent[start : start + count]
        start += count
    return found


TOP10 = Codec(
    name="top10-zstd",
    help="the largest tenth of the changes of each tensor, and all of a tensor with at most "
    f"{WHOLE} values, in half precision; other weights stay as received; requires the extra `zstd`",
    layout=f"a float16 array `{VALUES}` with the changes that are sent, in order, then for each "
    "tensor a bool array of its shape that marks them; the whole update is then one Zstandard "
    "frame, as for `int8-zstd`",
    encode=encode,
    decode=decode,
    size=lambda count: count + 2 * (count if count <= WHOLE else math.ceil(count / SHARE)),
    changes=True,
    feedback=True,
    compression=ZSTD,  # a bit for each weight instead of a byte
)
