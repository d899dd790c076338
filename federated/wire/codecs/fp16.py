"""The codec `fp16`: changes of weights in half precision (IEEE 754 binary16), which needs half the
bytes.

The relative error of a change is at most 2^-11; below 2^-14 the absolute error is at most 2^-25.
Changes beyond 65504 cannot be sent.
"""

from __future__ import annotations

import numpy as np

from federated.errors import Malformed, Refused
from federated.wire.codecs.codec import Codec, Tensors

__all__ = ["FP16"]

LARGEST = float(np.finfo(np.float16).max)


def encode(tensors: Tensors) -> Tensors:
    found = {}
    for name, value in tensors.items():
        with np.errstate(over="ignore"):
            half = value.astype(np.float16)
        if not np.isfinite(half).all():
            raise Refused(
                f"tensor {name}: expected changes up to {LARGEST:g}, the most that float16 can "
                f"hold, found {np.abs(value).max():g}: use wire.codec = 'raw'"
            )
        found[name] = half
    return found


def decode(tensors: Tensors) -> Tensors:
    for name, value in tensors.items():
        if value.dtype != np.float16:
            raise Malformed(f"tensor {name}: expected float16, found {value.dtype.name}")
    return {name: value.astype(np.float32) for name, value in tensors.items()}


FP16 = Codec(
    name="fp16",
    help="changes of weights in half precision: relative error of at most 2^-11 (below 2^-14: "
    "absolute error of at most 2^-25); no changes above 65504",
    layout="the change of each tensor as float16",
    encode=encode,
    decode=decode,
    size=lambda count: 2 * count,
    changes=True,
)
