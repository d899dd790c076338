"""Check the updates of a site's devices and combine them into one: the mean, weighted by examples
(statistics of batch norm: by batches), and the sums of scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coordinator.assign.affordable_submodels import count_steps
from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.round.collector_interface import Collector
from coordinator.round.round_state import Agent
from coordinator.round.task_state import TaskState
from coordinator.trust.message_checks import check_scores, check_statistics, check_training
from coordinator.trust.tensor_checks import check_weights
from federated.engine.aggregate import Total, fold, mean
from federated.engine.sums_of_squares import sum_squares
from federated.engine.update_contributions import Part
from federated.system.file_mapping import map_file
from federated.task import Task, Update
from federated.training import score_sums
from federated.wire import tensors
from federated.wire.codecs.codec import Tensors
from models.slicing import corner

__all__ = ["SiteSum"]


class SiteSum(Collector):
    """The updates of a site's devices for one task of their gateway. It applies the coordinator's
    checks to each of them, so that one device cannot spoil the update of the site.

    Sums are float64, so that the mean is rounded only once, to float32.

    A device counts with at most ten times the median number of examples, as at the coordinator.

    weights: the weights of the task, as the gateway and its devices received them.
    agents: the devices whose updates were folded, in order.
    """

    def __init__(self, agents: Mapping[str, Agent], weights: Path) -> None:
        """agents: of the site, by name. Raises OSError, WireError."""
        self.weights: Tensors = tensors.decode(map_file(weights))[1]
        self.agents: list[str] = []
        known = {name: one.profile for name, one in agents.items() if one.profile is not None}
        self._examples = {name: profile.data.examples for name, profile in known.items()}
        self._most = limit_counts(self._examples.values()) if known else 0
        self._total = Total()
        self._shapes = {name: tuple(value.shape) for name, value in self.weights.items()}
        self._norms = {name: math.sqrt(sum_squares(v)) for name, v in self.weights.items()}
        self._samples, self._steps, self._batches, self._loss = 0, 0, 0, 0.0
        self._labels = set[int]()
        self._tallies: list[Mapping[str, Any]] = []

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        if task.work == "calibrate":
            check_statistics(update)
        elif task.work == "evaluate":
            check_scores(update)
        else:
            examples = self._examples.get(task.agent, 0)
            check_weights(update, self._shapes, self._norms)
            check_training(update, examples, count_steps(task.recipe, examples), elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        """Add an update, and those of its notes that `check` looked at."""
        samples, notes = min(update.samples, self._most), update.notes
        batches = min(notes["batches"], self._most) if update.work == "calibrate" else 0
        weight = float(batches or samples)
        parts = [
            Part(
                name,
                corner(value.shape),
                tuple(value.shape),
                torch.from_numpy(value.astype(np.float64)),
                weight,
            )
            for name, value in update.tensors.items()
        ]
        fold(self._total, parts, (update.agent,))
        self.agents.append(update.agent)
        self._samples += samples
        self._batches += batches
        if update.work == "train":
            self._steps = max(self._steps, update.steps)
            self._loss += samples * float(notes["loss"])
            self._labels.update(notes.get("labels", ()))
        if update.work != "calibrate":
            self._tallies.append(notes.get("tallies", {}))

    def make_update(self, task: Task) -> Update:
        """Return the update of the gateway for its task. At least one device's update is in it."""
        found = {
            name: mean(one).to(torch.float32).numpy() for name, one in self._total.sums.items()
        }
        return Update(
            task.run,
            task.round,
            task.attempt,
            task.agent,
            task.work,
            task.submodel,
            task.version,
            self._samples,
            self._steps,
            found,
            self._make_notes(task),
        )

    def _make_notes(self, task: Task) -> dict[str, Any]:
        if task.work == "calibrate":
            return {"batches": self._batches}
        notes = dict[str, Any]()
        if task.work == "train":
            notes["loss"] = self._loss / self._samples
            if task.recipe.labels:
                notes["labels"] = sorted(self._labels)
        # a view of only some devices would not be about the same examples as the others
        views = set(self._tallies[0]).intersection(*self._tallies[1:])
        if views:
            notes["tallies"] = {
                view: score_sums.add(one[view] for one in self._tallies) for view in sorted(views)
            }
        return notes
