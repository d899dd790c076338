"""A trainer of a malicious device. It wraps an honest trainer, whose code does not know of it, and
changes only the parameters in its updates: losses, scores, statistics, variates and what the device
keeps are those of an honest training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from federated.device.attacks.formulas import Changes
from federated.device.trainers.trainer import (
    Accelerator,
    GraphTrainer,
    LoadedNetwork,
    Shapes,
    Start,
    Trainer,
    TrainingResult,
    uses_graphs,
)
from federated.task import Recipe
from federated.training.score_sums import Tallies
from federated.training.training_inputs import Array, Examples, Execution, TrainingData, TrainingSet
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = ["Attack", "make_malicious"]

RESAMPLED = 5  # trainings on random samples, from which an attack knows mean and deviation


@dataclass(frozen=True)
class Attack:
    """An attack.

    formula: of the change that the device sends.
    strength: the formula's strength.
    shuffled: whether the formula uses the change by training on shuffled labels.
    resampled: whether it uses the changes by training on random samples.
    """

    formula: Callable[[Changes, float], Array]
    strength: float
    shuffled: bool = False
    resampled: bool = False

    def with_strength(self, strength: float) -> Attack:
        """Return the attack with another strength. Raises ValueError unless it is positive."""
        if not (math.isfinite(strength) and strength > 0):
            raise ValueError(f"expected a positive number, found {strength}")
        return replace(self, strength=strength)


def make_malicious(trainer: Trainer, attack: Attack) -> Trainer:
    """Return a trainer whose updates are those of an attack."""
    if uses_graphs(trainer):
        return MaliciousGraphTrainer(trainer, attack)
    return MaliciousTrainer(trainer, attack)


@dataclass(frozen=True)
class MaliciousTrainer:
    """An honest trainer with an attack.

    inner: trains.
    attack: changes the updates.
    """

    inner: Trainer
    attack: Attack

    @property
    def runtime(self) -> str:
        return self.inner.runtime

    @property
    def capabilities(self) -> frozenset[str]:
        return self.inner.capabilities

    @property
    def accelerator(self) -> Accelerator | None:
        return self.inner.accelerator

    def use_threads(self, threads: int) -> None:
        self.inner.use_threads(threads)

    def shapes(self, submodel: Submodel) -> Shapes:
        return self.inner.shapes(submodel)

    @contextmanager
    def load(self, start: Start) -> Iterator[LoadedNetwork]:
        with self.inner.load(start) as honest:
            yield MaliciousNetwork(honest, self.inner, start, self.attack)

    def survey(self, run: Run, data: Examples, memory: int) -> dict[str, Any]:
        return self.inner.survey(run, data, memory)

    def training_memory(self, submodel: Submodel, batch: int) -> int:
        return self.inner.training_memory(submodel, batch)

    def stepper(
        self, submodel: Submodel, x: Array, y: Array, labels: Sequence[int]
    ) -> Callable[[], object]:
        return self.inner.stepper(submodel, x, y, labels)


@dataclass(frozen=True)
class MaliciousGraphTrainer(MaliciousTrainer):
    """An honest trainer of graphs with an attack."""

    inner: GraphTrainer

    def use_graphs(self, graphs: Mapping[str, Path]) -> None:
        self.inner.use_graphs(graphs)


@dataclass(frozen=True)
class MaliciousNetwork:
    """An honest network with an attack. Each further training of a round has the same start.

    honest: trains, calibrates and evaluates as the task says.
    trainer: loads the networks of the further trainings.
    start: of the task.
    """

    honest: LoadedNetwork
    trainer: Trainer
    start: Start
    attack: Attack

    def calibrate(
        self, x: Array, stop: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Array], int]:
        return self.honest.calibrate(x, stop)

    def evaluate(
        self, data: TrainingData, recipe: Recipe, stop: Callable[[], bool] | None = None
    ) -> Tallies:
        return self.honest.evaluate(data, recipe, stop)

    def train(self, data: TrainingData, execution: Execution) -> TrainingResult:
        result = self.honest.train(data, execution)
        parameters = self.trainer.shapes(self.start.submodel).parameters
        names = [name for name in parameters if name in self.start.weights]
        names = [name for name in names if name not in self.start.recipe.keep]

        def measure_change(found: TrainingResult) -> Array:
            sent = {**found.tensors, **found.sent}
            return flatten([sent[name] - self.start.weights[name] for name in names])

        def train_again(other: TrainingData) -> Array:
            with self.trainer.load(self.start) as network:
                return measure_change(network.train(other, execution))

        attack = self.attack
        changes = Changes(
            measure_change(result),
            train_again(shuffle_labels(data, self.start)) if attack.shuffled else flatten([]),
            [train_again(resample(data, self.start, k)) for k in range(RESAMPLED)]
            if attack.resampled
            else (),
        )
        made = attack.formula(changes, attack.strength)
        return replace(result, sent={**result.sent, **self._add_change(made, names)})

    def _add_change(self, change: Array, names: Sequence[str]) -> dict[str, Array]:
        """Return the received weights plus a change [d]."""
        received = [self.start.weights[name] for name in names]
        ends = np.cumsum([weight.size for weight in received])[:-1]
        parts = np.split(change, ends)
        return {
            name: (weight + part.reshape(weight.shape)).astype(weight.dtype)
            for name, weight, part in zip(names, received, parts, strict=True)
        }


def flatten(values: Sequence[Array]) -> Array:
    """Return all values as one vector of float32."""
    return np.concatenate([np.zeros(0, np.float32), *(one.ravel() for one in values)])


def shuffle_labels(data: TrainingData, start: Start) -> TrainingSet:
    """Return the examples with their labels in a random order, the same in each round of a run.

    FedFA shuffles labels "among clients"; a device has only its own.
    """
    order = np.random.default_rng(start.recipe.seed).permutation(len(data.y))
    return TrainingSet(data.x, data.y[order], data.labels)


def resample(data: TrainingData, start: Start, number: int) -> TrainingSet:
    """Return as many examples, drawn at random with replacement: sample `number` of the round."""
    rng = np.random.default_rng([start.seed, number])
    chosen = rng.integers(len(data.y), size=len(data.y))
    return TrainingSet(data.x[chosen], data.y[chosen], data.labels)
