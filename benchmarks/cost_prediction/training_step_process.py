"""Take training steps in a fresh process, as a device does, and report their time and memory to
`python -m benchmarks predict`.

The process reads one JSON line from standard input (`Order`) and prints one per submodel (`Taken`).
It has one thread, and trains once before it measures, since libraries load on the first step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from edge_agent.device.process_memory import read_memory, reset_peak
from edge_agent.device.profiling import time_step
from federated.data.dataset import Dataset
from federated.device.trainers.catalogue import open_trainer
from models.menu import menu
from models.named_network import network
from models.submodel import Submodel

__all__ = ["Taken", "ask", "main"]


@dataclass(frozen=True)
class Order:
    """Steps to take.

    submodels: trained one after another in one process
    batch: random examples per step
    """

    submodels: tuple[Submodel, ...]
    batch: int


@dataclass(frozen=True)
class Taken:
    """Measurement of a step.

    seconds: as a device measures it
    base: resident bytes of the process before the network was built
    peak: most resident bytes
    """

    seconds: float
    base: int
    peak: int


def ask(submodels: Sequence[Submodel], batch: int) -> list[Taken]:
    """Return the cost of steps, measured in one fresh process. CalledProcessError: it dies."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    order = msgspec.json.encode(Order(tuple(submodels), batch))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cost_prediction.training_step_process"],
        env=environment,
        input=order,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [msgspec.json.decode(line, type=Taken) for line in done.stdout.splitlines()]


def main() -> None:
    """Read an order, and print the measurements."""
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    trainer = open_trainer("pytorch")
    trainer.use_threads(1)
    time_step(
        menu(network("mlp", (8,), 10), (0.1,), (1,))[0],
        order.batch,
        draw_examples((8,), 10, order.batch),
        trainer,
    )
    for submodel in order.submodels:
        data = draw_examples(submodel.network.inputs, submodel.network.outputs, order.batch)
        base, _ = read_memory()
        reset_peak()
        seconds = time_step(submodel, order.batch, data, trainer)
        print(msgspec.json.encode(Taken(seconds, base, read_memory()[1])).decode(), flush=True)


def draw_examples(inputs: tuple[int, ...], outputs: int, count: int) -> Dataset:
    """Return random examples of bytes."""
    x = np.random.default_rng(0).integers(0, 256, (count, *inputs), np.uint8)
    return Dataset(
        "random examples", x, np.arange(count) % outputs, x[:0], np.arange(0), outputs, "class"
    )


if __name__ == "__main__":
    main()
