"""The codec `raw`: unchanged float32 values."""

from __future__ import annotations

from federated.wire.codecs.codec import Codec

__all__ = ["RAW"]

RAW = Codec(
    name="raw",
    help="unchanged values",
    layout="each trained tensor itself as float32, not its change",
    encode=lambda tensors: tensors,
    decode=lambda tensors: tensors,
    size=lambda count: 4 * count,
)
