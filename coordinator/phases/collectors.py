"""Check and sum batch norm statistics, scores, and late updates from earlier rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from coordinator.fleet.submodel_shipment import STATS, Shipment, to_torch
from coordinator.phases.run_context import RunContext
from coordinator.round.collector_interface import Collector, limit_size
from coordinator.round.task_state import TaskState
from coordinator.round.tensor_check import Examined, TensorCheck
from coordinator.trust.tensor_checks import examine
from coordinator.trust.update_checks import accept_training, check_report
from federated.engine.aggregate import Total, fold, mean
from federated.engine.update_contributions import Part
from federated.task import Card, Task, Update
from federated.wire.codecs.codec import Tensors
from federated.wire.codecs.raw import RAW
from models.slicing import corner
from models.submodel import Submodel

__all__ = [
    "Calibration",
    "LateUpdates",
    "Scoring",
    "accept_update",
    "check_update",
    "make_check",
    "rebuild_shipment",
]

FindCard: TypeAlias = Callable[[str], Card | None]
CACHED = 2  # earlier rounds with shipments in memory


class Calibration(Collector):
    """Collects batch norm statistics.

    find_card: returns an agent's description of its data.
    robust: takes the median of each entry over the devices instead of the mean, since a device
        could outweigh all others with the batches that it claims.
    most: batches with which a device counts in the mean; 0: no limit.
    """

    def __init__(self, find_card: FindCard, robust: bool, most: int = 0) -> None:
        self._find_card, self._robust, self._most = find_card, robust, most
        self._total = Total()
        self._values: dict[str, list[torch.Tensor]] = {}  # by home

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_report(task, update, self._find_card(task.agent), elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        batches = update.notes["batches"]
        weight = min(batches, self._most) if self._most else batches
        parts = make_statistics_parts(to_torch(update), weight)
        if not self._robust:
            fold(self._total, parts, (update.agent, update.submodel.name))
            return
        for part in parts:
            self._values.setdefault(part.home, []).append(part.value)

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return the statistics by home."""
        if self._robust:
            return {
                home: torch.from_numpy(np.median([value.numpy() for value in values], axis=0))
                for home, values in self._values.items()
            }
        return {home: mean(total) for home, total in self._total.sums.items()}


class Scoring(Collector):
    """Collects tallies of devices.

    find_card: returns an agent's description of its data.
    found: submodel, agent and tallies of each update.
    """

    def __init__(self, find_card: FindCard) -> None:
        self._find_card = find_card
        self.found: list[tuple[Submodel, str, Any]] = []

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_report(task, update, self._find_card(task.agent), elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        self.found.append((update.submodel, update.agent, update.notes["tallies"]))


def make_statistics_parts(update: Update, batches: int) -> list[Part]:
    """Return an agent's statistics as parts, weighted by a number of batches."""
    prefix = f"{STATS}{update.submodel.name}/"
    return [
        Part(prefix + name, corner(value.shape), tuple(value.shape), value, float(batches))
        for name, value in update.tensors.items()
    ]


class LateUpdates(Collector):
    """Checks late updates between trainings. The states that they are based on stay on disk."""

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self._rebuild = lru_cache(CACHED)(lambda number: rebuild_shipment(run, number))

    def received(self, task: Task) -> Tensors:
        return self._rebuild(task.round).received(task.submodel, task.weights_codec)

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_update(self.run, self._rebuild(task.round), task, update, elapsed)

    def accept(self, task: Task, examined: Examined, elapsed: float) -> None:
        accept_update(self.run, task, examined, elapsed)

    def restore(self, task: Task, update: Update) -> Update:
        """Return a checked update as if its agent had received the weights without a codec."""
        if task.weights_codec == RAW.name:
            return update
        return self._rebuild(task.round).restore(update, task.weights_codec)

    def fold(self, state: TaskState, update: Update) -> None:
        raise AssertionError("late updates are folded in the next training")


def rebuild_shipment(run: RunContext, number: int) -> Shipment:
    """Return the shipment of an earlier round, in a run that takes late updates."""
    assert run.past is not None, "tasks are carried only if late updates count"
    return Shipment(run.fleet, run.past.state(number - 1), run.method)


def check_update(
    run: RunContext, shipment: Shipment, task: Task, update: Update, elapsed: float
) -> None:
    """Raise Refused for an update that must not be folded.

    shipment: the weights that the agent received.
    elapsed: see `Collector.check`.
    """
    received = shipment.received(task.submodel, task.weights_codec)
    examined = examine(update, make_check(run, shipment, task), received)
    accept_update(run, task, examined, elapsed)


def accept_update(run: RunContext, task: Task, examined: Examined, elapsed: float) -> None:
    """Raise Refused for an update that must not be folded although its tensors passed their
    checks.
    """
    accept_training(task, examined, run.find_card(task.agent), elapsed, run.defences)


def make_check(run: RunContext, shipment: Shipment, task: Task, weights: str = "") -> TensorCheck:
    """Return how to check the tensors of a task's update. weights: see `TensorCheck`."""
    sent, limit = shipment.parcel(task.submodel), limit_size(task)
    return TensorCheck(
        task.codec,
        limit,
        sent.shapes,
        sent.norms,
        run.defences.measures,
        weights,
        task.weights_codec,
    )
