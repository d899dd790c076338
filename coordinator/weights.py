"""Weights on their way out and updates on their way in, between the method's tensors and the wire."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch

from coordinator.fleet import Fleet
from federated.method import Method, State
from federated.task import Recipe, Task, Update, Work
from federated.wire import tensors
from models.submodel import Submodel

__all__ = ["STATS", "Shipment", "received", "statistics_of"]

STATS = "stats/"  # homes of calibrated batch norm statistics: stats/SUBMODEL/LAYER.running_mean
SLOTS = 8  # rounds before a slot is used again: a straggler may still ask for weights that were withdrawn
HEADER = 65_536  # bytes that an update's header may take beyond its tensors


def received(update: Update) -> Update:
    """The update with torch tensors over the memory that it came in."""
    return replace(update, tensors={name: shared(array) for name, array in update.tensors.items()})


def shared(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the array is read-only; so are we
        return torch.from_numpy(array)


def statistics_of(state: State, submodel: Submodel) -> dict[str, torch.Tensor]:
    """The calibrated statistics of a submodel by local name; empty where it was not calibrated since the state changed."""
    prefix = f"{STATS}{submodel.name}/"
    return {home.removeprefix(prefix): value for home, value in state.tensors.items() if home.startswith(prefix)}


class Shipment:
    """Cuts, encodes and publishes each submodel's weights of one state once, and writes the tasks that name them; one is for one kind of work."""

    def __init__(self, fleet: Fleet, state: State, method: Method, *, calibrated: bool = False) -> None:
        self.fleet, self.state, self.method, self.calibrated = fleet, state, method, calibrated
        self._sent: dict[Submodel, tuple[str, str, str, int]] = {}  # version, slot, sha256, bytes

    @staticmethod
    def version(state: State) -> str:
        """Names the weights of a state; `s` is added where statistics go with them, `p` where what only training needs was left out."""
        return f"r{state.round}"

    def task(self, agent: str, work: Work, submodel: Submodel, recipe: Recipe, deadline: float, *, round: int, run: str) -> Task:
        if submodel not in self._sent:
            local = dict(self.method.dispatch(self.state, self.method.place(self.state, submodel)))
            own = {name: value for name, value in local.items() if work == "train" or "/" not in name}  # the rest is for training alone
            kind = "s" if self.calibrated else "p" if len(own) < len(local) else ""
            version, slot = self.version(self.state) + kind, f"r{self.state.round % SLOTS}{kind}"
            if self.calibrated:
                own |= statistics_of(self.state, submodel)
            data = memoryview(tensors.encode({"version": version, "submodel": submodel.name}, own))
            self._sent[submodel] = version, *self.fleet.shelf.put(version, submodel.name, data, slot)
        version, slot, digest, size = self._sent[submodel]
        since = self.fleet.folded.get(agent, 0)
        return Task(run, round, self.fleet.attempt, agent, work, submodel, version, digest, size, recipe, deadline, since, slot=slot)

    def limit(self, task: Task) -> int:
        """Largest acceptable encoding of an update to this task, bytes: no device sends more than it received, but for the header."""
        return task.size + HEADER
