"""A trainer that takes virtual seconds, and whose answers follow from agent, round and weights alone."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.schedules.world import World
from federated.device.trainer import Outcome
from federated.task import Card, Task, Update
from federated.wire import tensors
from models.families import statistics

__all__ = ["DATA", "Trainer", "learn"]

DATA = Card("digits", (1, 4, 4), "uint8", 4, 100, 20, (5.0,), (6.0,))
NEARER = np.float32(0.1)  # share of the way to a point of its own that an agent's weights go in a training


def drawn(task: Task) -> float:
    """From 0 to 1, by agent and round."""
    digest = hashlib.sha256(f"{task.agent}/{task.round}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def learn(task: Task, weights: Mapping[str, NDArray[Any]]) -> Update:
    """The answer to a task."""
    value = drawn(task)
    said = Update(task.run, task.round, task.attempt, task.agent, task.work, task.submodel, task.version, DATA.examples, 0, {}, {})
    if task.work == "train":
        tracked = task.recipe.norm == "tracked"
        own = {name: found for name, found in weights.items() if "/" not in name and (tracked or "running_" not in name)}
        made = {name: np.ascontiguousarray(found + NEARER * (np.float32(value - 0.5) - found)) for name, found in own.items()}
        return replace(said, steps=1, tensors=made, notes={"loss": 1.0 + value, **({"labels": [0, 1]} if task.recipe.labels else {})})
    if task.work == "calibrate":
        made = {name: np.full(shape, value + 0.5, np.float32) for name, shape in statistics(task.submodel).items()}
        return replace(said, tensors=made, notes={"batches": 1})
    held = DATA.held_out
    return replace(said, samples=held, notes={"tallies": {"all": {"count": [held], "loss": [held * value], "right": [math.floor(held * value)]}}})


def lie(update: Update, rng: random.Random) -> Update:
    """An update that must be refused, or that harms nobody."""
    first = next(iter(update.tensors), "")
    lies: list[Callable[[], Update]] = [
        lambda: replace(update, round=update.round + 1),
        lambda: replace(update, agent="a0"),
        lambda: replace(update, samples=2**40),
        lambda: replace(update, steps=0),
        lambda: replace(update, notes={**update.notes, "loss": math.nan}),
        lambda: replace(update, notes={**update.notes, "tallies": {"all": {"count": [1e300], "loss": [-1.0], "right": [1e300]}}}),
        lambda: replace(update, notes={}),
        lambda: replace(update, tensors={}),
        lambda: replace(update, tensors={**update.tensors, first: np.full_like(update.tensors[first], np.nan)}) if first else update,
        lambda: replace(update, tensors={**update.tensors, first: np.full_like(update.tensors[first], 1e30)}) if first else update,
        lambda: replace(update, tensors={**update.tensors, "other": np.zeros(10, np.float32)}),
    ]
    return rng.choice(lies)()


@dataclass
class Trainer:
    """The trainer of one agent. pace: seconds that a task takes, about. character: `mute` never answers, a `liar` answers something else."""

    world: World
    pace: float
    character: str = ""
    progress: tuple[int, int] = (0, 0)
    present: tuple[Task, Path, Path] | None = None
    due: float = 0.0

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        self.present, self.due = (task, weights, result), self.world.now + self.pace * self.world.random.uniform(0.5, 1.5)

    def poll(self) -> Outcome | None:
        if self.character == "mute":
            self.progress = int(self.world.now), 10**9  # it claims to be at work
            return None
        if self.present is None or self.world.now < self.due:
            return None
        (task, weights, result), self.present = self.present, None
        try:
            made = learn(task, tensors.decode(weights.read_bytes())[1])
            if self.character == "liar":
                made = lie(made, self.world.random)
            result.write_bytes(tensors.encode(msgspec.to_builtins(replace(made, tensors={})), made.tensors))
        except OSError as error:
            return Outcome(task, None, f"{error}")
        return Outcome(task, result, loss=float(made.notes.get("loss", math.nan)))

    def cancel(self) -> None:
        self.present = None
