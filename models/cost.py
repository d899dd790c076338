"""What a submodel costs: parameters, multiply-adds, activations and memory, counted on the meta device, where nothing is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.families import build, example, shapes
from models.submodel import Submodel

__all__ = ["Cost", "cost"]

MARGIN = 1.4  # allocator, workspaces and fragmentation over the tensors themselves (measured)
BATCH = 2  # examples in the counted pass; more than one, so that batch norm has a variance


@dataclass(frozen=True)
class Cost:
    """parameters: that travel. macs: multiply-adds of convolutions and linears in one forward pass of one example, to every exit.

    activations: floats kept for the backward pass per example. bytes: of the parameters as float32.
    memory: estimated peak bytes of a training step at the batch asked for, beyond the process itself.
    """

    parameters: int
    macs: int
    activations: int
    bytes: int
    memory: int


@lru_cache(maxsize=4096)
def cost(submodel: Submodel, batch: int = 1) -> Cost:
    """The cost of a submodel, for training steps of `batch` examples."""
    parameters = sum(map(math.prod, shapes(submodel).values()))
    macs, saved, largest = counted(submodel)
    memory = MARGIN * ((saved + 2 * largest) * batch * 4 + 3 * parameters * 4)
    return Cost(parameters, macs, saved, parameters * 4, math.ceil(memory))


@lru_cache(maxsize=1024)
def counted(submodel: Submodel) -> tuple[int, int, int]:
    """Multiply-adds, floats saved for backward and floats of the largest saved tensor, each per example."""
    net = build(submodel, "meta").train()
    x = example(submodel.network, BATCH, "meta")
    with FlopCounterMode(display=False) as flops:
        sizes = saved(net, x)
    return flops.get_total_flops() // 2 // BATCH, sum(sizes) // BATCH, max(sizes, default=0) // BATCH


def saved(net: nn.Module, x: Tensor) -> list[int]:
    """Floats of each storage that a forward pass keeps for backward, parameters left out."""
    skipped = {p.untyped_storage()._cdata for p in net.parameters()}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no storage is freed and its address used again

    def pack(value: Tensor) -> Tensor:
        key = value.untyped_storage()._cdata
        if key not in skipped:
            kept.setdefault(key, value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        out = getattr(net, "exits", net)(x)  # who asks for exits trains all of them
    del out
    return [value.untyped_storage().nbytes() // 4 for value in kept.values()]
