"""Collectors of evaluation and calibration: they sum the scores and batch norm statistics that
devices send (see `Collector`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from coordinator.fleet.shipment import STATS, Shipment, to_torch
from coordinator.round.collector import Snapshot
from coordinator.round.task_state import Planned, TaskState
from coordinator.trust.acceptance import check_scores, check_statistics
from federated.engine.aggregate import Part, Total, fold, mean
from federated.task import Task, Update
from models.slicing import corner
from models.submodel import Submodel

__all__ = ["Answers", "Calibration", "Scoring"]


class Answers:
    """Collects what devices find without training (see `Collector`)."""

    def limit(self, task: Task) -> int:
        return Shipment.limit(task)

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        raise NotImplementedError

    def fold(self, state: TaskState, update: Update) -> None:
        raise NotImplementedError

    def prepare(self, agent: str) -> Planned:
        raise AssertionError("this phase has no spares")

    def snapshot(self) -> Snapshot | None:
        return None


class Calibration(Answers):
    """Batch norm statistics. robust: of every entry the median over the devices counts, not the
    mean.
    """

    def __init__(self, robust: bool) -> None:
        self._robust = robust
        self._total = Total()
        self._updates: list[Update] = []

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_statistics(update)

    def fold(self, state: TaskState, update: Update) -> None:
        if self._robust:
            self._updates.append(to_torch(update))
        else:
            fold(
                self._total,
                statistics_parts(to_torch(update)),
                (update.agent, update.submodel.name),
            )

    def statistics(self) -> dict[str, torch.Tensor]:
        """By home."""
        if self._robust:
            return middle(self._updates)
        return {home: mean(one) for home, one in self._total.sums.items()}


class Scoring(Answers):
    """The tallies of devices: the submodel, the agent and what it found."""

    def __init__(self) -> None:
        self.found: list[tuple[Submodel, str, Any]] = []

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_scores(update)

    def fold(self, state: TaskState, update: Update) -> None:
        self.found.append((update.submodel, update.agent, update.notes["tallies"]))


def statistics_parts(update: Update) -> list[Part]:
    """What one agent's statistics contribute: their values, weighted by its batches."""
    prefix = f"{STATS}{update.submodel.name}/"
    weight = float(update.notes["batches"])
    return [
        Part(prefix + name, corner(value.shape), tuple(value.shape), value, weight)
        for name, value in update.tensors.items()
    ]


def middle(updates: Iterable[Update]) -> dict[str, torch.Tensor]:
    """By home, of every entry the median over the devices: under a robust rule, where a count of
    batches is a claim that may outweigh all.
    """
    found: dict[str, list[torch.Tensor]] = {}
    for part in (part for update in updates for part in statistics_parts(update)):
        found.setdefault(part.home, []).append(part.value)
    return {
        home: torch.from_numpy(np.median([value.numpy() for value in values], axis=0))
        for home, values in found.items()
    }
