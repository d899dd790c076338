"""Train with ONNX Runtime and the graphs that a task names, without PyTorch and without code of the
network.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from federated.device.trainers.graph_checks import load_graph
from federated.device.trainers.graph_names import PARAMETER, STATISTIC
from federated.device.trainers.graph_session import GraphSession
from federated.device.trainers.onnx_network import OnnxNetwork
from federated.device.trainers.trainer import Shapes, Start
from federated.errors import ConfigError, Refused
from federated.task import Recipe
from federated.trainer_capabilities import CAPABILITIES, GRAPHS
from federated.training.training_inputs import Array, Examples, TrainingSet
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = ["OnnxTrainer"]

log = logging.getLogger(__name__)

OPEN = 3  # graphs in memory: those of one submodel


class OnnxTrainer:
    """A trainer that supports every recipe without hooks, random changes to images, an optimiser's
    state between rounds, and tensors that stay on the device: those begin with the network's own
    initial values. device: "cpu".

    Raises ConfigError for another device.
    """

    capabilities = frozenset({GRAPHS, *CAPABILITIES} - {"augment", "keep", "keep_optimiser"})
    accelerator = None

    def __init__(self, device: str) -> None:
        if device != "cpu":
            raise ConfigError(
                f"--device {device}: the trainer 'onnx' computes on the CPU alone: use --device "
                "cpu, or install the extra 'train' and use --trainer pytorch"
            )
        self.runtime = f"onnxruntime {onnxruntime.__version__} {device}"
        self._threads = 1
        self._graphs = dict[str, Path]()
        self._open = OrderedDict[tuple[str, ...], GraphSession]()  # by digest, kind and submodel

    def use_threads(self, threads: int) -> None:
        self._threads = threads
        self._open.clear()

    def use_graphs(self, graphs: Mapping[str, Path]) -> None:
        self._graphs = dict(graphs)

    def shapes(self, submodel: Submodel) -> Shapes:
        sessions = [*self._load(submodel).values()]
        if not sessions:
            raise Refused(
                f"the task for {submodel.name} names no training graphs, which the trainer 'onnx' "
                "needs"
            )
        parameters, statistics = (collect_shapes(sessions, kind) for kind in (PARAMETER, STATISTIC))
        return Shapes(parameters, statistics)

    @contextmanager
    def load(self, start: Start) -> Iterator[OnnxNetwork]:
        yield OnnxNetwork.load(start, self._load(start.submodel))

    def survey(self, run: Run, data: Examples, memory: int) -> dict[str, Any]:
        if run.menu:
            log.info("%s surveys devices with PyTorch: this one sends no survey", run.method)
        return {}

    def training_memory(self, submodel: Submodel, batch: int) -> int:
        raise Refused(
            "the trainer 'onnx' cannot predict its memory: install the extra 'train' and use the "
            "trainer 'pytorch'"
        )

    def stepper(
        self, submodel: Submodel, x: Array, y: Array, labels: Sequence[int]
    ) -> Callable[[], object]:
        """Return a step with the graphs in use and with random weights. Raises Refused without."""
        random, shapes = np.random.default_rng(0), self.shapes(submodel)
        weights = {name: random.normal(0, 0.05, s) for name, s in shapes.parameters.items()}
        weights |= {name: np.ones(shape) for name, shape in shapes.statistics.items()}
        start = Start(submodel, Recipe(batch=len(x)), weights, seed=0)
        network = OnnxNetwork.load(start, self._load(submodel))
        return network.make_stepper(TrainingSet(x, y, labels))

    def _load(self, submodel: Submodel) -> Mapping[str, GraphSession]:
        """Return the graphs of a submodel, by kind. Raises Refused for one that must not run."""
        found, name = {}, submodel.unowned.name
        for kind, path in self._graphs.items():
            key = path.stem, kind, name
            if key not in self._open:
                self._open[key] = load_graph(path, kind, name, self._threads)
            self._open.move_to_end(key)
            found[kind] = self._open[key]
        while len(self._open) > OPEN:
            self._open.popitem(last=False)
        return found


def collect_shapes(sessions: Sequence[GraphSession], kind: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs of a kind, by local name. Raises Refused if two graphs
    differ.
    """
    found = dict[str, tuple[int, ...]]()
    for session in sessions:
        for name, (shape, _) in session.inputs.items():
            if not name.startswith(kind):
                continue
            known = found.setdefault(name.removeprefix(kind), shape)
            if known != shape:
                raise Refused(
                    f"training graphs: expected one shape of {name}, found {known} and {shape}"
                )
    return found
