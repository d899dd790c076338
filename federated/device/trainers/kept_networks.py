"""Keep small networks between tasks: to build one takes longer than to train it for a few steps."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from federated.device.trainers.trainer import Start
from federated.task import Recipe
from federated.training.training_inputs import Array
from models.submodel import Submodel
from models.submodel_building import build

__all__ = ["KeptNetworks"]

MOST = 32 << 20  # bytes of all kept networks
# layers of these packages keep nothing between two passes but their tensors
STATELESS = ("torch.nn.modules.", "models.")


@dataclass(frozen=True, eq=False)
class ReusableNetwork:
    """A network that can take the weights of one task after another.

    net: on the trainer's device.
    tensors: its own tensors by name, which `net` shares.
    parameters: names of the parameters.
    buffers: the other tensors, and a copy of each as it was built.
    size: bytes of its tensors.
    """

    net: nn.Module
    tensors: dict[str, Tensor]
    parameters: frozenset[str]
    buffers: tuple[tuple[Tensor, Tensor], ...]
    size: int

    @classmethod
    def build(cls, submodel: Submodel, seed: int, device: str) -> ReusableNetwork:
        often = device == "cuda"  # a simulation's, which trains many devices
        made = deepcopy(build_once(submodel, seed)) if often else build(submodel, seed=seed)
        net = made.to(device)
        buffers = tuple((value, value.clone()) for value in net.buffers())
        parameters = frozenset(name for name, _ in net.named_parameters())
        size = sum(value.nbytes for value in (*net.parameters(), *net.buffers()))
        return cls(net, net.state_dict(), parameters, buffers, size)

    def load(self, start: Start) -> nn.Module:
        """Return the network with the weights of a start."""
        for value, first in self.buffers:
            value.copy_(first)
        for name, weights in start.weights.items():
            put(self.tensors[name], weights)
        return self.net if self.net.training else self.net.train()

    @cached_property
    def stateless(self) -> bool:
        """True if its tensors are all that a task can change. A user's own layers may count steps,
        and a hook may call anything.
        """
        return all(
            f"{type(layer).__module__}.".startswith(STATELESS)
            and not (layer._forward_hooks or layer._forward_pre_hooks)
            for layer in self.net.modules()
        )


class KeptNetworks:
    """The networks of one trainer, the latest last: at most `MOST` bytes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._kept: OrderedDict[tuple[Submodel, int], ReusableNetwork] = OrderedDict()

    def take(self, start: Start) -> ReusableNetwork:
        """Return a network for a start, which may hold tensors of another task: a kept one if the
        start has all its parameters. Missing ones are initialised.
        """
        key = start.submodel, start.recipe.seed
        known = self._kept.pop(key, None)
        if known is not None and known.parameters <= start.weights.keys():
            return known
        return ReusableNetwork.build(*key, self.device)

    def keep(self, one: ReusableNetwork, submodel: Submodel, recipe: Recipe) -> None:
        """Keep a network after a task of its submodel, unless it may hold more than tensors."""
        if recipe.hook or one.size > MOST or not one.stateless:
            return
        one.net.zero_grad()
        self._kept[submodel, recipe.seed] = one
        while sum(other.size for other in self._kept.values()) > MOST:
            self._kept.popitem(last=False)


@lru_cache(maxsize=8)
def build_once(submodel: Submodel, seed: int) -> nn.Module:
    """Return an initial network that no one changes. To draw it takes longer than to copy it."""
    return build(submodel, seed=seed)


def put(value: Tensor, weights: Array) -> None:
    """Copy weights, which may be read-only, to a network's own memory."""
    if value.device.type == "cpu":
        np.copyto(value.numpy(), weights)
    else:
        value.copy_(torch.from_numpy(np.array(weights)))
