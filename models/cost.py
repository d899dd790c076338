"""Count the cost of a submodel (parameters, multiply-adds and memory), and find the layers that may
have parallel branches. Everything runs on the meta device, without values, except for a network
whose forward pass depends on values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.layers.early_exits import run_exits
from models.layers.mergeable_branches import (
    Branch,
    Linears,
    available_branches,
    is_spatial,
    output_features,
)
from models.meta_device_speedups import ShapeCache
from models.random_state import isolate_random_state
from models.step_workload import work
from models.submodel import Submodel
from models.submodel_building import parameters, rehearsal

__all__ = ["BranchableLayer", "Cost", "branchable_layers", "cost", "count_branches"]

BATCH = 2  # examples in the counted pass; more than one, so that batch norm has a variance


@dataclass(frozen=True)
class BranchableLayer:
    """A layer that may have branches.

    kinds: branches that can join the origin, in the order in which they do
    places: positions per example at which each weight multiplies once
    passes: 3 with the gradients of weight and input, 2 without that of the input
    """

    kinds: tuple[Branch, ...]
    places: int
    passes: int


@lru_cache(maxsize=1024)
def branchable_layers(
    submodel: Submodel, most: int, linear: Linears = "copy", rank: int = 8
) -> Mapping[str, BranchableLayer]:
    """Return the layers that may have branches, by name in the order of the forward pass, with at
    most `most` kinds each.

    These are the convolutions whose windows overlap. A network without any uses all its linear
    layers and convolutions. A layer that shares its weight with another has no branches.
    """
    found: dict[str, tuple[nn.Module, int, int]] = {}
    with isolate_random_state(0):  # dropout draws
        net, x = rehearsal(submodel, BATCH)
        net.train()
        for name, layer in find_candidates(net).items():
            layer.register_forward_hook(partial(record_call, found, name), with_kwargs=True)
        with torch.enable_grad():
            net(x)
    chosen = {name: row for name, row in found.items() if is_spatial(row[0])} or found
    made = {
        name: BranchableLayer(
            available_branches(layer, most, linear=linear, rank=rank), places, passes
        )
        for name, (layer, places, passes) in chosen.items()
    }
    return MappingProxyType(made)


def find_candidates(net: nn.Module) -> dict[str, nn.Module]:
    owners: dict[int, int] = {}
    for _, p in net.named_parameters(remove_duplicate=False):
        owners[id(p)] = owners.get(id(p), 0) + 1
    found = {
        name: m
        for name, m in net.named_modules()
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    }
    return {name: m for name, m in found.items() if owners.get(id(m.weight)) == 1}


def record_call(
    found: dict[str, tuple[nn.Module, int, int]],
    name: str,
    layer: nn.Module,
    given: tuple[Tensor, ...],
    named: dict[str, Tensor],
    out: Tensor,
) -> None:
    """Record one call of a layer; a layer may be called several times."""
    (x,) = (*given, *named.values())
    places = found[name][1] if name in found else 0
    found[name] = (
        layer,
        places + out.numel() // (BATCH * output_features(layer)),
        3 if x.requires_grad else 2,
    )


Shape = tuple[int, ...]

# bytes that a process needs at its first step for the code and buffers of kernels (measured, as are
# the next two)
LIBRARIES = 16 * 10**6
COPIES = 3  # copies of the parameters: momentum, received weights, reordered weights
# multiple of the largest convolution's reads and writes: reordered copies, and the fragmentation
# that they leave in the heap
HOLES = 3


@dataclass(frozen=True)
class Cost:
    """Cost of a submodel.

    Branches are counted as in DynamicFL, each run on its own. This project merges them, so they run
    no slower than `submodel.plain`. They share the input saved for backward, and are not sent.

    batch: examples of a training step
    parameters: number of parameters that are sent
    macs: multiply-adds of convolutions and linear layers in one forward pass of one example, to the
        deepest exit
    forward_macs: multiply-adds per example of a training step's forward pass, to every exit
    training_macs: the same with the backward pass
    bytes: size of the parameters as float32
    """

    submodel: Submodel
    batch: int
    parameters: int
    macs: int
    forward_macs: int
    training_macs: int
    bytes: int

    @property
    def memory(self) -> int:
        """Estimated peak bytes of one training step, without the process itself. Counting it takes
        another pass.
        """
        more, held = count_branches(self.submodel)[0], work(self.submodel.plain, self.batch)
        # a branch also has a gradient
        return (
            LIBRARIES
            + held.live
            + HOLES * held.span
            + 4 * (COPIES * self.parameters + (2 + COPIES) * more)
        )


@lru_cache(maxsize=4096)
def cost(submodel: Submodel, batch: int = 1) -> Cost:
    """Return the cost of a submodel for training steps of `batch` examples."""
    own = parameters(submodel)
    macs, forward, training = count_macs(submodel.plain)
    _, more_macs, more_training = count_branches(submodel)
    return Cost(
        submodel,
        batch,
        own,
        macs + more_macs,
        forward + more_macs,
        training + more_training,
        own * 4,
    )


@lru_cache(maxsize=1024)
def count_branches(submodel: Submodel) -> tuple[int, int, int]:
    """Return the floats of the branches beside each layer's own weight, and their multiply-adds per
    example, forward and in training.
    """
    if submodel.branches == 1:
        return 0, 0, 0
    able = branchable_layers(replace(submodel, branches=1), submodel.branches - 1).values()
    floats = [sum(branch.floats for branch in layer.kinds) for layer in able]
    works = [layer.places * more for layer, more in zip(able, floats, strict=True)]
    return (
        sum(floats),
        sum(works),
        sum(work * layer.passes for work, layer in zip(works, able, strict=True)),
    )


@lru_cache(maxsize=1024)
def count_macs(submodel: Submodel) -> tuple[int, int, int]:
    """Return, per example, the multiply-adds of inference, of training's forward pass and of all of
    training.
    """
    net, x = rehearsal(submodel, BATCH)
    net.train()
    with ShapeCache(), count_flops() as training:
        outs = run_exits(net, submodel, x)
        inference = forward = training.get_total_flops()
        torch.autograd.backward([out.sum() for out in outs])
    if len(outs) > 1:  # inference skips the shallow exits
        with ShapeCache(), count_flops() as deepest, torch.no_grad():
            net(x)
        inference = deepest.get_total_flops()
    return (
        inference // 2 // BATCH,
        forward // 2 // BATCH,
        training.get_total_flops() // 2 // BATCH,
    )


def count_flops() -> FlopCounterMode:
    return FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: backward_flops}
    )


def backward_flops(grad: Shape, x: Shape, weight: Shape, *rest: Any, out_shape: Any) -> int:
    """Return the FLOPs of a convolution's backward pass: as many as forward for each required
    gradient, of input and weight.

    PyTorch's own formula ignores that the gradient of a grouped weight sees only its group's
    channels.
    """
    transposed, needed = rest[4], rest[7]
    return (
        2
        * math.prod(x if transposed else grad)
        * math.prod(weight[1:])
        * (int(needed[0]) + int(needed[1]))
    )
