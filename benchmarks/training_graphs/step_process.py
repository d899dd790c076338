"""Take training steps in a fresh process, with a graph or with PyTorch, and report their time and
memory to `python -m benchmarks trainstep`.

The process reads one JSON line from standard input (`Order`), and prints one (`Taken`). It has one
thread. With a graph it never imports PyTorch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from edge_agent.device.process_memory import read_memory
from edge_agent.device.profiling import time_calls
from federated.device.trainers.graph_names import DRAW, NEXT, PARAMETER
from federated.device.trainers.graph_session import GraphSession, to_value
from federated.training.training_inputs import Array
from models.submodel import Submodel

__all__ = ["Taken", "ask", "find_median", "main"]


@dataclass(frozen=True)
class Order:
    """Steps to take.

    submodel: the network
    model: its name
    batch: examples per step, random ones
    graph: path of the graph of a step; empty: use PyTorch
    start: when the process was started, on the monotonic clock, which all processes share
    """

    submodel: Submodel
    model: str
    batch: int
    graph: str = ""
    start: float = 0.0


@dataclass(frozen=True)
class Taken:
    """Measurement of a step.

    seconds: of one step
    ready: seconds from the start of the process to the first step
    peak: most resident bytes of the process
    """

    seconds: float
    ready: float
    peak: int


def ask(submodel: Submodel, model: str, batch: int, graph: str = "") -> Taken:
    """Return the cost of a step. CalledProcessError: the process dies."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    order = Order(submodel, model, batch, graph, time.monotonic())
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_graphs.step_process"],
        env=environment,
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Taken)


def find_median(several: Sequence[Taken]) -> Taken:
    """Return the median of each measured number."""
    return Taken(
        statistics.median(one.seconds for one in several),
        statistics.median(one.ready for one in several),
        int(statistics.median(one.peak for one in several)),
    )


def main() -> None:
    """Read an order, and print the measurement."""
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    step = load_graph(order) if order.graph else load_network(order)
    ready = time.monotonic() - order.start
    seconds = time_calls(step)
    assert not order.graph or "torch" not in sys.modules, "a device without PyTorch could not"
    print(msgspec.json.encode(Taken(seconds, ready, read_memory()[1])).decode(), flush=True)


def load_network(order: Order) -> Callable[[], object]:
    from edge_agent.join.speed_calibration import draw_examples  # PyTorch, as in the next line
    from federated.device.trainers.catalogue import open_trainer

    trainer, data = open_trainer("pytorch"), draw_examples(order.model, order.batch)
    trainer.use_threads(1)
    return trainer.stepper(order.submodel, data.x, data.y, data.labels)


def load_graph(order: Order) -> Callable[[], object]:
    """Return a function that takes a step with random weights and examples."""
    session, random = GraphSession(Path(order.graph).read_bytes()), np.random.default_rng(0)
    values = session.zeros()
    found: Array
    for name, (shape, dtype) in session.inputs.items():
        if dtype == np.int32:
            found = random.integers(0, order.submodel.network.outputs, shape)
        elif name == "x":
            found = random.integers(0, 256, shape)
        elif name.startswith(PARAMETER):
            found = random.normal(0, 0.05, shape)
        elif name == "weights" or name.startswith(DRAW):
            found = np.ones(shape)
        else:
            continue
        values[name] = to_value(found.astype(dtype))

    def step() -> None:
        for name, value in session.run(values).items():
            if name.startswith(NEXT):
                values[name.removeprefix(NEXT)] = value

    return step


if __name__ == "__main__":
    main()
