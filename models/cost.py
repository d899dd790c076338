"""Count what a submodel costs: parameters, multiply-adds, activations and memory, on the meta
device, which computes no values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.branching import branchable_layers
from models.families.catalogue import build, example, parameters
from models.pass_work import work
from models.shape_cache import ShapeCache
from models.submodel import Submodel

__all__ = ["Cost", "cost", "count_branches"]

Shape = tuple[int, ...]

# bytes that a process needs at its first step for the code and buffers of kernels (measured, as are
# the next two)
LIBRARIES = 16 * 10**6
COPIES = 3  # copies of the parameters: momentum, received weights, reordered weights
# multiple of the largest convolution's reads and writes: reordered copies, and the fragmentation
# that they leave in the heap
HOLES = 3
BATCH = 2  # examples in the counted pass; at least two, since batch norm needs a variance


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
    activations: floats kept for the backward pass, per example
    bytes: size of the parameters as float32
    """

    submodel: Submodel
    batch: int
    parameters: int
    macs: int
    forward_macs: int
    training_macs: int
    activations: int
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
    macs, forward, training, saved = count_macs(submodel.plain)
    _, more_macs, more_training = count_branches(submodel)
    return Cost(
        submodel,
        batch,
        own,
        macs + more_macs,
        forward + more_macs,
        training + more_training,
        saved,
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
def count_macs(submodel: Submodel) -> tuple[int, int, int, int]:
    """Return, per example, the multiply-adds of inference, of training's forward pass and of all of
    training, and the floats saved for backward.
    """
    net = build(submodel, "meta").train()
    x, exits = (
        example(submodel.network, BATCH, "meta"),
        any(name.startswith("exits") for name in submodel.features),
    )
    with ShapeCache(), counter() as training:
        outs, sizes = run_forward(net, x, exits=exits)
        inference = forward = training.get_total_flops()
        torch.autograd.backward([out.sum() for out in outs])
    if exits:  # inference skips the shallow exits
        with ShapeCache(), counter() as deepest, torch.no_grad():
            net(x)
        inference = deepest.get_total_flops()
    return (
        inference // 2 // BATCH,
        forward // 2 // BATCH,
        training.get_total_flops() // 2 // BATCH,
        sum(sizes) // BATCH,
    )


def counter() -> FlopCounterMode:
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


def run_forward(net: nn.Module, x: Tensor, *, exits: bool) -> tuple[list[Tensor], list[int]]:
    """Return the outputs of a forward pass, and the floats of each storage saved for backward,
    parameters left out.
    """
    skipped = {p.untyped_storage()._cdata for p in net.parameters()}
    # holds the tensors, so that no storage is freed and its address reused
    kept: dict[int, Tensor] = {}

    def pack(value: Tensor) -> Tensor:
        key = value.untyped_storage()._cdata
        if key not in skipped:
            kept.setdefault(key, value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        # `exits` is a method, unknown to Module's type
        outs = net.exits(x) if exits else [net(x)]  # type: ignore[operator]
    return outs, [value.untyped_storage().nbytes() // 4 for value in kept.values()]
