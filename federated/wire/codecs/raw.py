"""Float32 values as they are."""

from __future__ import annotations

from federated.wire.codecs.codec import Codec

__all__ = ["RAW"]

RAW = Codec(
    name="raw",
    help="values as they are",
    encode=lambda tensors: tensors,
    decode=lambda tensors: tensors,
    size=lambda count: 4 * count,
)
