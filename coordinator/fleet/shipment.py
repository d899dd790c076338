"""Weights on their way out and updates on their way in, between the method's tensors and the wire.

What belongs to a submodel of one state (its plan, its norms, where it was published) is worked out
once, in the state's shipment.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch

from coordinator.fleet.fleet import Fleet
from coordinator.trust.acceptance import expected_shapes
from federated.method import Method, State
from federated.task import Recipe, Task, Update, Work
from federated.wire import tensors
from federated.wire.codecs.raw import RAW
from models.slicing import Plan
from models.submodel import Submodel

__all__ = ["STATS", "Parcel", "Shipment", "received", "statistics_of"]

STATS = "stats/"  # homes of calibrated batch norm statistics: stats/SUBMODEL/LAYER.running_mean
# rounds before a slot is used again: a straggler may still ask for weights that were withdrawn
SLOTS = 8
CUT = 4  # submodels whose tensors a shipment holds, to measure updates by
HEADER = 65_536  # bytes that an update's header may take beyond its tensors


def received(update: Update) -> Update:
    """The update with torch tensors over the memory that it came in."""
    return replace(update, tensors={name: shared(array) for name, array in update.tensors.items()})


def shared(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the array is read-only; so are we
        return torch.from_numpy(array)


def statistics_of(state: State, submodel: Submodel) -> dict[str, torch.Tensor]:
    """The calibrated statistics of a submodel by local name; empty where it was not calibrated
    since the state changed.
    """
    prefix = f"{STATS}{submodel.name}/"
    return {
        home.removeprefix(prefix): value
        for home, value in state.tensors.items()
        if home.startswith(prefix)
    }


@dataclass(frozen=True)
class Published:
    """Where a submodel's weights are. slot: topic level; digest: sha256 of the encoding; size: its
    bytes.
    """

    version: str
    slot: str
    digest: str
    size: int


@dataclass
class Parcel:
    """One submodel of a state, for all agents that train it. cut: gives its tensors, by local
    name.
    """

    plan: Plan
    shipment: Shipment
    submodel: Submodel

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors that an agent sends back."""
        return expected_shapes(self.plan)

    @cached_property
    def norms(self) -> dict[str, float]:
        """L2 norm of each tensor that an agent receives."""
        return {
            name: float(value.double().norm())
            for name, value in self.shipment.cut(self.submodel).items()
        }

    @cached_property
    def published(self) -> Published:
        """Encodes and publishes the weights, the first time that this is asked."""
        return self.shipment.publish(self.submodel)


class Shipment:
    """Cuts, encodes and publishes each submodel's weights of one state once, and writes the tasks
    that name them; one is for one kind of work.

    calibrated: batch norm statistics go with the weights.
    """

    def __init__(
        self,
        fleet: Fleet,
        state: State,
        method: Method,
        work: Work = "train",
        *,
        calibrated: bool = False,
    ) -> None:
        self.fleet, self.state, self.method, self.work, self.calibrated = (
            fleet,
            state,
            method,
            work,
            calibrated,
        )
        self._parcels: dict[Submodel, Parcel] = {}
        self.cut = lru_cache(CUT)(self._cut)

    @staticmethod
    def version(state: State) -> str:
        """Names the weights of a state; `s` is added where statistics go with them, `p` where what
        only training needs was left out.
        """
        return f"r{state.round}"

    def parcel(self, submodel: Submodel) -> Parcel:
        if submodel not in self._parcels:
            self._parcels[submodel] = Parcel(
                self.method.place(self.state, submodel), self, submodel
            )
        return self._parcels[submodel]

    def task(
        self, agent: str, submodel: Submodel, recipe: Recipe, deadline: float, *, round: int
    ) -> Task:
        """The task of an agent, without `since`. Publishes the weights if no other agent got them
        yet.
        """
        sent, fleet = self.parcel(submodel).published, self.fleet
        run, attempt = fleet.run.run, fleet.attempt
        return Task(
            run,
            round,
            attempt,
            agent,
            self.work,
            submodel,
            sent.version,
            sent.digest,
            sent.size,
            recipe,
            deadline,
            slot=sent.slot,
            codec=fleet.run.codec if self.work == "train" else RAW.name,
        )

    def publish(self, submodel: Submodel) -> Published:
        local = self.cut(submodel)
        # the rest is for training alone
        own = {
            name: value for name, value in local.items() if self.work == "train" or "/" not in name
        }
        kind = "s" if self.calibrated else "p" if len(own) < len(local) else ""
        version, slot = self.version(self.state) + kind, f"r{self.state.round % SLOTS}{kind}"
        if self.calibrated:
            own |= statistics_of(self.state, submodel)
        data = memoryview(tensors.encode({"version": version, "submodel": submodel.name}, own))
        return Published(
            version, *self.fleet.endpoint.shelf.put(version, submodel.name, data, slot)
        )

    def _cut(self, submodel: Submodel) -> Mapping[str, torch.Tensor]:
        """The tensors of a submodel, by local name."""
        return dict(self.method.dispatch(self.state, self.parcel(submodel).plan))

    @staticmethod
    def limit(task: Task) -> int:
        """Largest acceptable encoding of an update to this task, bytes: no device sends more than
        it received, but for the header: no codec makes tensors larger.
        """
        return task.size + HEADER
