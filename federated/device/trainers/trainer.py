"""The interface of a trainer, which trains, calibrates and evaluates submodels for a device's
tasks. Torch-free.

`federated.device.task_execution` calls them. Weights are passed as numpy arrays by local name, so
that a trainer needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

from federated.task import Recipe
from federated.training.score_sums import Tallies
from federated.training.training_inputs import Array, Examples, Execution, TrainingData
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = [
    "Accelerator",
    "GraphTrainer",
    "LoadedNetwork",
    "Shapes",
    "Start",
    "TensorShapes",
    "Trainer",
    "TrainerOpener",
    "TrainingResult",
    "uses_graphs",
]

TensorShapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shapes:
    """The shapes of a submodel's tensors, by local name.

    parameters: of all parameters, trainable or frozen.
    statistics: of the running means and variances of batch norm; empty without such layers.
    """

    parameters: TensorShapes
    statistics: TensorShapes


@dataclass(frozen=True)
class Start:
    """The start of a task, from which a network is loaded.

    submodel: the network.
    recipe: how to train it.
    weights: its own tensors by local name, in the shapes of `Trainer.shapes`, perhaps read-only.
        Missing ones are initialised from `recipe.seed`.
    seed: of every random choice except initialisation, 0 to 2^63 - 1.
    round: the coordinator's round, from 1; 0 without a run.
    received: all tensors received, perhaps read-only; names with a "/" belong to a variate
        (`c/NAME`) or a hook.
    memory: arrays that the device kept from earlier rounds, by name there.
    """

    submodel: Submodel
    recipe: Recipe
    weights: Mapping[str, Array]
    seed: int
    round: int = 0
    received: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training. All arrays are contiguous, and no other code writes to them.

    tensors: by local name: every parameter, running statistics under `norm = "tracked"`, and the
        tensors that the recipe keeps.
    loss: mean over the examples of the last epoch.
    steps: number of optimiser steps.
    sent: tensors of the update in addition to `tensors`, or instead of those with the same name.
    memory: arrays that the device keeps for its next round, by name.
    notes: plain values of the update.
    """

    tensors: Mapping[str, Array]
    loss: float
    steps: int
    sent: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


class LoadedNetwork(Protocol):
    """A submodel with weights. Each call leaves its weights and statistics for the next one."""

    def train(self, data: TrainingData, execution: Execution) -> TrainingResult:
        """Train with the recipe that the network was loaded with.

        Raises DataError without examples, Stopped, Diverged.
        """

    def calibrate(
        self, x: Array, stop: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Array], int]:
        """Return batch norm statistics over one shuffled pass through x [n, *inputs], in batches of
        `recipe.batch`, and the number of batches.

        Each statistic is the mean over batches of the batch's mean or unbiased variance. All other
        layers behave as in evaluation. Raises DataError without examples, Stopped.
        """

    def evaluate(
        self, data: TrainingData, recipe: Recipe, stop: Callable[[], bool] | None = None
    ) -> Tallies:
        """Return sums over the examples, by view (see
        `federated.training.evaluation_passes.evaluate`); empty without examples.

        recipe: gives the batch size, the fraction of hidden tokens, and whether to count per class.
        Raises Stopped.
        """


class Accelerator(Protocol):
    """A trainer's own memory, separate from that of the process."""

    def free(self) -> int:
        """Return the free bytes."""

    def reset_peak(self) -> None:
        """Forget the peak of earlier tasks."""

    def peak(self) -> int:
        """Return the largest number of bytes in use since `reset_peak`."""

    def check(self) -> None:
        """Raise an error if a failed task left the accelerator unusable for this process."""


class Trainer(Protocol):
    """Trains, calibrates and evaluates submodels in this process.

    runtime: name and version of the computing library, and its device, such as
        "torch 2.7.0 cpu".
    capabilities: those of `federated.trainer_capabilities` that it supports. Without the network's
        code, `graphs` is one of them, and the trainer is a `GraphTrainer`.
    accelerator: its own memory; None if it uses the memory of the process.
    """

    @property
    def runtime(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[str]: ...
    @property
    def accelerator(self) -> Accelerator | None: ...

    def use_threads(self, threads: int) -> None:
        """Compute with this number of threads, at least 1, from now on."""

    def shapes(self, submodel: Submodel) -> Shapes:
        """Return the shapes of a submodel's tensors. Raises ValueError for a submodel that it
        cannot build.
        """

    def load(self, start: Start) -> AbstractContextManager[LoadedNetwork]:
        """Return a network with weights, to use within the context. The weights are copied.

        Within the context MemoryError means that memory ran out, including an accelerator's.
        """

    def survey(self, run: Run, data: Examples, memory: int) -> dict[str, Any]:
        """Return the survey of the device that a run's method requires at join; empty if it
        requires none. memory: bytes that training may use.

        Raises Unknown for a method that is not installed, ConfigError for settings that it rejects.
        """

    def training_memory(self, submodel: Submodel, batch: int) -> int:
        """Return the predicted bytes that training uses beyond the process itself."""

    def stepper(
        self, submodel: Submodel, x: Array, y: Array, labels: Sequence[int]
    ) -> Callable[[], object]:
        """Return a function that performs one training step (forward, backward, update) on a batch
        of examples x [n, *inputs], y [n, ...]. Callers time it.
        """


class GraphTrainer(Trainer, Protocol):
    """A trainer that runs the training graphs that a task names. It predicts no `training_memory`,
    and needs the graphs for a `stepper`, so its devices are not timed before they train.
    """

    def use_graphs(self, graphs: Mapping[str, Path]) -> None:
        """Use these graphs for the next submodel: files by kind, named after their sha256.

        `shapes` and `load` raise Refused for a graph that must not run or is missing.
        """


def uses_graphs(trainer: Trainer) -> TypeGuard[GraphTrainer]:
    # `isinstance` with a protocol takes as long as to load a small network
    return hasattr(trainer, "use_graphs")


class TrainerOpener(Protocol):
    """Makes a trainer that computes on a device, "cpu" or "cuda".

    Raises MissingExtra without its packages, ConfigError for a device that it cannot use.
    """

    def __call__(self, device: str, /) -> Trainer: ...
