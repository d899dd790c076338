"""What a submodel costs: parameters, multiply-adds, activations and memory, counted on the meta
device, where nothing is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.branching import layers
from models.families.catalogue import build, example, parameters
from models.meta import Remembering
from models.submodel import Submodel
from models.work import work

__all__ = ["Cost", "branched", "cost"]

Shape = tuple[int, ...]

# bytes that a process takes at its first step, for code and buffers of kernels (measured, as are
# the next two)
LIBRARIES = 16 * 10**6
COPIES = 3  # of the parameters: momentum, the weights as they were received, reordered ones
# of what the largest convolution reads and writes: reordered copies, and holes that they leave in
# the allocator's heap
HOLES = 3
BATCH = 2  # examples in the counted pass; more than one, so that batch norm has a variance


@dataclass(frozen=True)
class Cost:
    """parameters: that travel. macs: multiply-adds of convolutions and linears in one forward pass
    of one example, to the deepest exit.

    forward_macs, training_macs: the same of a training step, to every exit: of its forward pass
    alone, and with the backward pass. Branches count as DynamicFL counts them, each run on its own;
    merged, as here, they take no more than `submodel.plain`. They share the input that backward
    needs, and do not travel. activations: floats kept for the backward pass per example. bytes: of
    the parameters as float32. batch: examples of a training step. memory: estimated peak bytes of
    one, beyond the process itself; it is a pass more to count.
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
        more, held = branched(self.submodel)[0], work(self.submodel.plain, self.batch)
        # a branch has a gradient too
        return (
            LIBRARIES
            + held.live
            + HOLES * held.span
            + 4 * (COPIES * self.parameters + (2 + COPIES) * more)
        )


@lru_cache(maxsize=4096)
def cost(submodel: Submodel, batch: int = 1) -> Cost:
    """The cost of a submodel, for training steps of `batch` examples."""
    own = parameters(submodel)
    macs, forward, training, saved = counted(submodel.plain)
    _, more_macs, more_training = branched(submodel)
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
def branched(submodel: Submodel) -> tuple[int, int, int]:
    """Floats of the branches beside each layer's own weight, and their multiply-adds, forward and
    of training, per example.
    """
    if submodel.branches == 1:
        return 0, 0, 0
    able = layers(replace(submodel, branches=1), submodel.branches - 1).values()
    floats = [sum(branch.floats for branch in layer.kinds) for layer in able]
    works = [layer.places * more for layer, more in zip(able, floats, strict=True)]
    return (
        sum(floats),
        sum(works),
        sum(work * layer.passes for work, layer in zip(works, able, strict=True)),
    )


@lru_cache(maxsize=1024)
def counted(submodel: Submodel) -> tuple[int, int, int, int]:
    """Multiply-adds of inference, of training's forward pass and of all of training, and floats
    saved for backward, each per example.
    """
    net = build(submodel, "meta").train()
    x, exits = (
        example(submodel.network, BATCH, "meta"),
        any(name.startswith("exits") for name in submodel.features),
    )
    with Remembering(), counter() as training:
        outs, sizes = saved(net, x, exits=exits)
        inference = forward = training.get_total_flops()
        torch.autograd.backward([out.sum() for out in outs])
    if exits:  # inference has no use for the shallow ones
        with Remembering(), counter() as deepest, torch.no_grad():
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
    """Of a convolution's backward pass: for each of the gradients of input and weight as many as
    forward.

    PyTorch's own formula forgets that the gradient of a grouped weight sees the channels of its
    group alone.
    """
    transposed, needed = rest[4], rest[7]
    return (
        2
        * math.prod(x if transposed else grad)
        * math.prod(weight[1:])
        * (int(needed[0]) + int(needed[1]))
    )


def saved(net: nn.Module, x: Tensor, *, exits: bool) -> tuple[list[Tensor], list[int]]:
    """What a forward pass gives, and the floats of each storage that it keeps for backward,
    parameters left out.
    """
    skipped = {p.untyped_storage()._cdata for p in net.parameters()}
    # holds the tensors, so that no storage is freed and its address used again
    kept: dict[int, Tensor] = {}

    def pack(value: Tensor) -> Tensor:
        key = value.untyped_storage()._cdata
        if key not in skipped:
            kept.setdefault(key, value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        # a method, which Module's type forgets
        outs = net.exits(x) if exits else [net(x)]  # type: ignore[operator]
    return outs, [value.untyped_storage().nbytes() // 4 for value in kept.values()]
