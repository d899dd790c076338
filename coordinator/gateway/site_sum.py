"""Check the updates of a site's devices and combine them into one: the mean, weighted by examples
(statistics of batch norm: by batches), and the sums of scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coordinator.assign.affordable_submodels import count_steps
from coordinator.gateway.site_profile import limit_cards, sum_counts
from coordinator.observe.fleet_scores import scale_down
from coordinator.round.collector_interface import Collector, limit_size
from coordinator.round.task_state import TaskState
from coordinator.round.tensor_check import TensorCheck
from coordinator.trust.configured_defences import Defences
from coordinator.trust.message_checks import EXAMPLES, HUGE
from coordinator.trust.tensor_checks import examine
from coordinator.trust.update_checks import (
    accept_training,
    check_report,
    count_answers,
    limit_claims,
)
from federated.engine.aggregate import Total, fold, mean
from federated.engine.sums_of_squares import sum_squares_each
from federated.engine.update_contributions import Part
from federated.system.file_mapping import map_file
from federated.task import Card, Task, Update
from federated.training import score_sums
from federated.training.score_sums import Tally
from federated.wire import tensors
from federated.wire.codecs.codec import Tensors
from federated.wire.codecs.raw import RAW
from models.slicing import corner

__all__ = ["SiteSum"]


class SiteSum(Collector):
    """The updates of a site's devices for one task of their gateway. It applies the coordinator's
    checks to each of them, so that one device cannot spoil the update of the site.

    Sums are float64, so that the mean is rounded only once, to float32.

    A device counts with a limited number of examples (see `limit_cards`), as at the coordinator.

    weights: the weights of the task, as the gateway and its devices received them.
    agents: the devices whose updates were folded, in order.
    """

    def __init__(
        self, task: Task, cards: Mapping[str, Card], weights: Path, defences: Defences
    ) -> None:
        """task: of the gateway. cards: of the devices, by name. Raises OSError, WireError."""
        self.weights: Tensors = tensors.decode(map_file(weights))[1]
        self.agents: list[str] = []
        self._task, self._cards, self._defences = task, cards, defences
        self._limits = limit_cards(cards.values(), defences.config.robust.examples)
        self._total = Total()
        shapes = {name: tuple(value.shape) for name, value in self.weights.items()}
        squares = sum_squares_each(self.weights)
        norms = {name: math.sqrt(square) for name, square in squares.items()}
        self._wanted = TensorCheck(RAW.name, limit_size(task), shapes, norms, defences.measures)
        self._samples, self._steps, self._batches, self._loss = 0, 0, 0, 0.0
        self._labels = set[int]()
        self._tallies: list[Mapping[str, Tally]] = []

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        # A device may have begun for a process of this gateway that was killed. What it reports of
        # its time is not used.
        card, elapsed = self._cards.get(task.agent), math.inf
        if task.work == "train":
            examined = examine(update, self._wanted, self.weights)
            accept_training(task, examined, card, elapsed, self._defences)
        else:
            check_report(task, update, card, elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        """Add an update, and those of its notes that `check` looked at."""
        scored = update.work == "evaluate"
        most, notes = self._limits.held_out if scored else self._limits.examples, update.notes
        counted = limit_claims(update, self._task.recipe, most)
        samples = counted.samples
        batches = min(notes["batches"], most) if update.work == "calibrate" else 0
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
            self._steps = max(self._steps, counted.steps)
            self._loss += samples * float(notes["loss"])
            self._labels.update(notes.get("labels", ()))
        if update.work != "calibrate":
            answers = self._limits.held_out * count_answers(update.submodel.network)
            tallies = notes.get("tallies", {})
            self._tallies.append({view: scale_down(one, answers) for view, one in tallies.items()})

    def make_update(self) -> Update:
        """Return the update of the gateway for its task. At least one device's update is in it.

        It counts no more than the gateway's profile states: otherwise the coordinator refuses it.
        """
        task = self._task
        examples, held_out = sum_counts(self._cards.values(), self._limits)
        found = {
            name: mean(one).to(torch.float32).numpy() for name, one in self._total.sums.items()
        }
        most = held_out if task.work == "evaluate" else examples
        return Update(
            task.run,
            task.round,
            task.attempt,
            task.agent,
            task.work,
            task.submodel,
            task.version,
            min(self._samples, most),
            min(self._steps, count_steps(task.recipe, examples)),
            found,
            self._make_notes(),
        )

    def _make_notes(self) -> dict[str, Any]:
        task = self._task
        if task.work == "calibrate":
            return {"batches": min(self._batches, EXAMPLES - 1)}
        notes = dict[str, Any]()
        if task.work == "train":
            notes["loss"] = limit_sum(self._loss / self._samples)
            if task.recipe.labels:
                notes["labels"] = sorted(self._labels)
        if tallies := select_common(self._tallies):
            notes["tallies"] = tallies
        return notes


def select_common(tallies: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the sums of the views that most devices sent, over the devices that sent all of them:
    views of other devices would not be about the same examples, and a device that leaves out some
    must not hide those of the site.
    """
    sent = Counter(tuple(sorted(one)) for one in tallies)
    views = max(sent, key=lambda some: (sent[some], len(some), some), default=())
    common = [one for one in tallies if one.keys() >= set(views)]
    return {
        view: {
            name: [limit_sum(value) for value in values]
            for name, values in score_sums.add(one[view] for one in common).items()
        }
        for view in views
    }


def limit_sum(value: float) -> float:
    """Return a sum of what single devices may report, within what the coordinator accepts."""
    return max(-HUGE, min(HUGE, value))
