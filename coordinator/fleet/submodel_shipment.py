"""Cut submodels out of the global state, publish their weights for the agents, and write the tasks
that name these weights.

What depends only on a submodel and a state (such as its plan, its norms and where it is published)
is computed once per state, by its `Shipment`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.published_weights import PublishedWeights
from coordinator.trust.message_checks import compute_shapes
from federated.engine.sums_of_squares import sum_squares_each
from federated.method import Method, State
from federated.task import Recipe, Task, Update, Work
from federated.wire import tensors
from federated.wire.codecs.codec import Tensors
from federated.wire.codecs.raw import RAW
from federated.wire.codecs.weights import (
    decode_arrays,
    encode_weights,
    pack_weights,
    restore_weights,
)
from models.slicing import Plan
from models.submodel import Submodel

__all__ = ["STATS", "Shipment", "select_statistics", "to_torch"]

STATS = "stats/"  # homes of calibrated batch norm statistics: stats/SUBMODEL/LAYER.running_mean
# rounds before a slot is used again: a straggler may still request weights that were withdrawn
SLOTS = 8
CACHED = 4  # submodels whose tensors a shipment caches, to measure updates against


def to_torch(update: Update) -> Update:
    """Return the update with torch tensors that share its memory, as views of one flat tensor if
    the arrays are views of one buffer of float32.
    """
    arrays = update.tensors
    base = getattr(next(iter(arrays.values()), None), "base", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and no code writes
        if (
            not isinstance(base, np.ndarray)
            or base.nbytes % 4
            or any(a.base is not base or a.dtype != np.float32 for a in arrays.values())
        ):
            return replace(update, tensors={n: torch.from_numpy(a) for n, a in arrays.items()})
        flat = torch.from_numpy(base.view(np.float32).reshape(-1))
    start, views = flat.data_ptr(), dict[str, torch.Tensor]()
    for name, array in arrays.items():
        offset = (array.__array_interface__["data"][0] - start) // 4
        strides = [stride // 4 for stride in array.strides]
        views[name] = flat.as_strided(array.shape, strides, offset)
    return replace(update, tensors=views)


def select_statistics(state: State, submodel: Submodel) -> dict[str, torch.Tensor]:
    """Return the calibrated statistics of a submodel by local name; empty if it was not calibrated
    since the state changed.
    """
    prefix = f"{STATS}{submodel.name}/"
    return {
        home.removeprefix(prefix): value
        for home, value in state.tensors.items()
        if home.startswith(prefix)
    }


def read_arrays(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return tensors as arrays that share their memory."""
    return {name: value.numpy() for name, value in tensors.items()}


@dataclass(eq=False)
class Parcel:
    """One submodel of a state, for all agents that train it.

    method: cuts the submodel from the state.
    state: the state.
    plan: rows that cut the submodel from the state.
    """

    method: Method
    state: State
    plan: Plan

    def cut(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors of the submodel, by local name."""
        return dict(self.method.dispatch(self.state, self.plan))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that an agent sends back, by local name."""
        return compute_shapes(self.plan)

    @cached_property
    def norms(self) -> dict[str, float]:
        """L2 norm of each tensor that an agent receives, by local name, before it is encoded."""
        squares = sum_squares_each(read_arrays(self.cut()))
        return {name: math.sqrt(square) for name, square in squares.items()}

    def decode(self, codec: str) -> Tensors:
        """Return the tensors as an agent decodes them, by local name."""
        return decode_arrays(encode_weights(read_arrays(self.cut()), codec), codec)


class Shipment:
    """Cuts, encodes and publishes each submodel's weights of one state once, and writes the tasks
    that name them, for one kind of work.

    calibrated: whether batch norm statistics are sent with the weights.
    """

    def __init__(
        self,
        fleet: MessageLoop,
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
        # Nothing here refers to the shipment itself: a cycle would keep the weights of rounds that
        # are over in memory until the garbage collector finds it.
        self._parcels: dict[Submodel, Parcel] = {}
        self._published: dict[tuple[Submodel, str], tuple[PublishedWeights, int]] = {}
        self._cut = lru_cache(CACHED)(Parcel.cut)
        self._decode = lru_cache(CACHED)(Parcel.decode)

    @staticmethod
    def version(state: State, codec: str = RAW.name, kind: str = "") -> str:
        """Return the version of a state's weights. kind: `s` if statistics are included, `p` if
        tensors that only training needs are left out.
        """
        return f"r{state.round}{name_variant(codec, kind)}"

    def parcel(self, submodel: Submodel) -> Parcel:
        """Return the parcel of a submodel, which is made only once."""
        if submodel not in self._parcels:
            plan = self.method.place(self.state, submodel)
            self._parcels[submodel] = Parcel(self.method, self.state, plan)
        return self._parcels[submodel]

    def cut(self, submodel: Submodel) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a submodel, by local name."""
        return self._cut(self.parcel(submodel))

    def received(self, submodel: Submodel, codec: str) -> Tensors:
        """Return the tensors of a submodel as an agent that trains it decodes them."""
        if codec == RAW.name:
            return read_arrays(self.cut(submodel))
        return self._decode(self.parcel(submodel), codec)

    def restore(self, update: Update, codec: str) -> Update:
        """Return an update as if its agent had received the weights without this codec."""
        if codec == RAW.name:
            return update
        exact, received = (self.received(update.submodel, one) for one in (RAW.name, codec))
        return replace(update, tensors=restore_weights(update.tensors, received, exact))

    def task(
        self,
        agent: str,
        submodel: Submodel,
        recipe: Recipe,
        deadline: float,
        *,
        round: int,
        codec: str = RAW.name,
    ) -> Task:
        """Return the task of an agent, without `since`, and with updates that are not encoded.
        Publish the weights unless they are already published. codec: of the weights.
        """
        fleet = self.fleet
        sent, raw_size = self.publish(submodel, codec)
        return Task(
            fleet.run.run,
            round,
            fleet.attempt,
            agent,
            self.work,
            submodel,
            sent.version,
            sent.manifest.sha256,
            sent.manifest.size,
            recipe,
            deadline,
            slot=sent.slot,
            weights_codec=codec,
            raw_size=raw_size,
        )

    def find_published(self, submodel: Submodel, codec: str) -> PublishedWeights | None:
        """Return the published weights of a submodel; None if it was not published."""
        sent, _ = self._published.get((submodel, codec), (None, 0))
        return sent

    def publish(self, submodel: Submodel, codec: str) -> tuple[PublishedWeights, int]:
        """Return the published weights of a submodel, and their bytes without a codec. Encode and
        publish them on the first call.
        """
        key = submodel, codec
        if key not in self._published:
            local = self.cut(submodel)
            # tensors with "/" in their name are for training only
            own = {
                name: value
                for name, value in local.items()
                if self.work == "train" or "/" not in name
            }
            kind = "s" if self.calibrated else "p" if len(own) < len(local) else ""
            version = self.version(self.state, codec, kind)
            slot = f"r{self.state.round % SLOTS}{name_variant(codec, kind)}"
            if self.calibrated:
                own |= select_statistics(self.state, submodel)
            arrays, meta = read_arrays(own), {"version": version, "submodel": submodel.name}
            pieces = pack_weights(meta, encode_weights(arrays, codec), codec)
            sent = self.fleet.endpoint.slots.put(version, submodel.name, pieces, slot)
            raw_size = sum(map(len, tensors.pieces(meta, arrays)))
            self._published[key] = sent, raw_size
        return self._published[key]


def name_variant(codec: str, kind: str) -> str:
    """Return the end of a version's name, which tells apart several weights of one state."""
    return kind if codec == RAW.name else f"{kind}-{codec}"
