"""The codec `int8`: eight bits per change of a weight, which need about a quarter of the bytes.

Each row of a tensor's first axis (the weights of an output channel) has a scale: its largest
absolute value over 127. A value is rounded up or down at random to a multiple of the scale, with
probabilities that keep its expectation (QSGD, Alistarh et al., arXiv 1610.02132, section 3.1), so
that the errors of many devices cancel in one round, also of devices that train once. A device adds
its own error to its next update (`federated.device.error_feedback`). The random numbers depend on
the values alone, so an update that is encoded again is the same.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed, Refused
from federated.wire.codecs.codec import Codec, Tensors

__all__ = ["INT8"]

SCALES = "/scales"  # name of the array with the scales of all tensors, in order
LARGEST = 127
SHORTEST = 16  # values of a row that has its own scale


def find_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows of a tensor, each with a scale, and their length."""
    size, rows = math.prod(shape), shape[0] if len(shape) > 1 else 1
    return (rows, size // rows) if rows and size // rows >= SHORTEST else (1, size)


def encode(tensors: Tensors) -> Tensors:
    scales = [np.zeros(0, np.float32)]
    found: dict[str, NDArray[np.generic]] = {SCALES: scales[0]}
    for name, value in tensors.items():
        if name == SCALES:
            raise Refused(f"tensor {name}: this name belongs to the codec int8")
        rows = np.ascontiguousarray(value).reshape(find_rows(value.shape))
        largest = np.abs(rows).max(axis=1, initial=0)
        if not np.isfinite(largest).all():
            raise Refused(f"tensor {name}: expected finite values, found NaN or infinity")
        scales.append(largest / np.float32(LARGEST))
        step = scales[-1][:, None]
        levels = np.divide(rows, step, out=np.zeros_like(rows), where=step > 0)
        rng = np.random.default_rng(zlib.crc32(rows.data))
        levels += rng.random(rows.shape, np.float32)
        found[name] = (
            np.clip(np.floor(levels, out=levels), -LARGEST, LARGEST, out=levels)
            .astype(np.int8)
            .reshape(value.shape)
        )
    found[SCALES] = np.concatenate(scales)
    return found


def decode(tensors: Tensors) -> Tensors:
    sent = dict(tensors)
    scales = sent.pop(SCALES, np.zeros(0, np.float32))
    counts = np.array([find_rows(value.shape)[0] for value in sent.values()], np.int64)
    if scales.dtype != np.float32 or scales.shape != (counts.sum(),):
        raise Malformed(
            f"{SCALES}: expected {counts.sum()} float32, one for each row, found "
            f"{list(scales.shape)} {scales.dtype.name}"
        )
    for name, value in sent.items():
        if value.dtype != np.int8:
            raise Malformed(f"tensor {name}: expected int8, found {value.dtype.name}")
    steps = np.split(scales, np.cumsum(counts))
    return {
        name: (value.reshape(find_rows(value.shape)) * step[:, None]).reshape(value.shape)
        for (name, value), step in zip(sent.items(), steps, strict=False)
    }


INT8 = Codec(
    name="int8",
    help="8 bits per change of a weight, with a scale for each row of a tensor and random "
    "rounding: error of less than 1/127 of the row's largest change, 0 on average",
    layout=f"a float32 array `{SCALES}`, then the change of each tensor as int8: a value is its "
    "int8 times its scale. A tensor of two or more axes whose rows along the first axis have at "
    f"least {SHORTEST} values has one scale for each row, in order; every other tensor has one",
    encode=encode,
    decode=decode,
    size=lambda count: count + count // 64,
    changes=True,
    feedback=True,
)
