"""Time to encode and decode the weights of a ResNet-18 (45 MB) without a codec, compared with one
copy into a reused buffer.
"""

from __future__ import annotations

import numpy as np

from benchmarks.timings import Row, time_interleaved
from federated.wire import tensors
from models.families.catalogue import full, initial, network

__all__ = ["measure"]


def measure() -> list[Row]:
    made = network("preresnet-18", (3, 32, 32), 10)
    weights = {name: value.numpy() for name, value in initial(made, 0).items()}
    buffer = bytearray()
    blob = bytes(tensors.encode({"submodel": full(made).name}, weights, buffer))
    source, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)
    times = time_interleaved(
        {
            "encode": lambda: tensors.encode({"submodel": "w1"}, weights, buffer),
            "decode": lambda: tensors.decode(blob),
            "limit": lambda: np.copyto(target, source),
        }
    )
    return [
        Row(
            f"{name} {len(blob) / 1e6:.0f} MB",
            times[name],
            times["limit"],
            times["limit"] / times[name],
        )
        for name in ("encode", "decode")
    ]
