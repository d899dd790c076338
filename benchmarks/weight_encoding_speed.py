"""`python -m benchmarks codec`: time the encoding and decoding of the weights of a ResNet-18 (45
MB) without a codec, compared with one copy into a reused buffer.
"""

from __future__ import annotations

import click
import numpy as np

from benchmarks.interleaved_timing import Row, compare, print_rows, time_interleaved
from federated.runtime.console import FORMAT
from federated.wire import tensors
from models.named_network import network
from models.submodel_building import full, initial

__all__ = ["command"]

COPIES = {"encode": 2.2, "decode": 0.7}  # goal: at most the time of this many copies


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
            "copy": lambda: np.copyto(target, source),
        }
    )
    return [
        compare(f"{name} {len(blob) / 1e6:.0f} MB", times[name], "copy", times["copy"], 1 / most)
        for name, most in COPIES.items()
    ]


@click.command("codec")
@FORMAT
def command(form: str) -> None:
    """Time the encoding and decoding of 45 MB of weights.

    The time of one copy in memory is measured for comparison.
    """
    print_rows(measure(), form, {})
