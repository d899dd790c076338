"""What a trainer is: the computing part of a task, behind two protocols; torch-free.

The sequence of a task (`federated.device.task_work`) calls these. Weights cross as numpy arrays, by
local name, so that a trainer needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from federated.engine.tallies import Tallies
from federated.task import Recipe
from federated.training.execution import Array, Examples, Execution, TrainingData
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = [
    "Accelerator",
    "LoadedNetwork",
    "Shapes",
    "Start",
    "TensorShapes",
    "Trainer",
    "TrainingResult",
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
    """What a network is loaded from.

    submodel: the network.
    recipe: how to train it.
    weights: its own tensors by local name, in the shapes of `Trainer.shapes`, perhaps read-only.
    Those that are missing are initialised from `recipe.seed`.
    seed: of every random choice but initialisation, 0 to 2^63 - 1.
    round: of the coordinator, from 1; 0 without a run.
    received: all tensors that came, perhaps read-only; names with a "/" are a variate's (`c/NAME`)
    or a hook's.
    memory: what the device kept from earlier rounds, by name there.
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
    """What a training gave. All arrays are contiguous, and nobody else writes to them.

    tensors: by local name, every parameter, running statistics under `norm = "tracked"`, and what
    the recipe keeps.
    loss: mean over the examples of the last epoch.
    steps: of the optimiser.
    sent: tensors of the update beside `tensors`, or in place of those with the same name.
    memory: what the device keeps for its next round, by name.
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
        """Train by the recipe that the network was loaded with.

        Raises DataError without an example, Stopped, Diverged.
        """

    def calibrate(
        self, x: Array, stop: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Array], int]:
        """Return batch norm statistics over one shuffled pass through x [n, *inputs], in batches of
        `recipe.batch`, and the number of batches.

        Each statistic is the mean over batches of the batch's mean or unbiased variance. All other
        layers behave as in evaluation. Raises DataError without an example, Stopped.
        """

    def evaluate(
        self, data: TrainingData, recipe: Recipe, stop: Callable[[], bool] | None = None
    ) -> Tallies:
        """Return sums over the examples, by view (see `federated.training.scoring.evaluate`); empty
        without an example.

        recipe: gives the batch size, the share of hidden tokens, and whether to count per class.
        Raises Stopped.
        """


class Accelerator(Protocol):
    """Memory of a trainer's own beside that of the process."""

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

    runtime: name and version of what computes, and where, such as "torch 2.7.0 cpu".
    capabilities: what it supports of `federated.capabilities`.
    accelerator: its own memory; None if it computes in the memory of the process.
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
        """Return the shapes of a submodel's tensors. Raises ValueError for one that it cannot
        build.
        """

    def load(self, start: Start) -> AbstractContextManager[LoadedNetwork]:
        """Return a network with weights, to use within the context. The weights are copied.

        Within the context MemoryError means that memory ran out, of an accelerator too.
        """

    def survey(self, run: Run, data: Examples, memory: int) -> dict[str, Any]:
        """Return what a run's method requires of a device that joins; empty where it requires
        nothing. memory: bytes that training may take.

        Raises Unknown for a method that is not installed, ConfigError for settings that it does not
        accept.
        """

    def training_memory(self, submodel: Submodel, batch: int) -> int:
        """Return the bytes that training takes beyond the process itself, as predicted."""

    def stepper(
        self, submodel: Submodel, x: Array, y: Array, labels: Sequence[int]
    ) -> Callable[[], object]:
        """Return a function that takes one training step (forward, backward, update) on a batch of
        examples x [n, *inputs], y [n, ...], to be timed.
        """
