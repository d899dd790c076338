"""Parallel branches of a layer that merge without loss: structural reparameterisation.

Ding et al., Diverse Branch Block (arXiv 2103.13425), as DynamicFL uses it (Nature Communications
2025, eqs. 14 to 18). What is linear in its weight adds up: F1 * x + F2 * x = (F1 + F2) * x, a
smaller kernel first padded with zeros to the centre of the larger one. So a layer with weight W may
train a sum of branches

    W = origin + sum_i pad(b_i)
    origin = W - sum_i pad(b_i)    at first (eq. 15)
    W <- origin + sum_i pad(b_i)   at last (eq. 14)

and computes at every moment what the one layer with W computes. Stride, groups and dilation are the
layer's and change nothing; a norm follows the sum. The branches are trained through W: the chain
rule hands each of them its part of W's gradient, which is what running them in parallel gives, at
the price of one layer. After a step of plain gradient descent W has moved by G * gradient, where G
counts the branches at each place of the kernel (Lemma 2). A norm within a branch is merged by its
running statistics (`fused`); in training it divides by those of the batch, and then neither is the
expansion without loss nor the branch linear, so no branch has one here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.nn.utils import parametrize

__all__ = [
    "Branch",
    "Init",
    "Linears",
    "fused",
    "join",
    "kinds",
    "merge",
    "originals",
    "outgoing",
    "reduced",
    "spatial",
    "split",
]

Init = Literal["normal", "zeros"]
Linears = Literal["copy", "low-rank"]

SHARE = 0.1  # of the weight's standard deviation: that of a new branch


@dataclass(frozen=True)
class Branch:
    """One branch beside the origin. shapes: of its tensors.

    kernel: a weight as large as the layer's or smaller, zero-padded to the centre. average: a
    pointwise kernel after a mean over the layer's window, zeros of the padding included. low-rank:
    a product [out, r] [r, in].
    """

    kind: Literal["kernel", "average", "low-rank"]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def floats(self) -> int:
        return sum(map(math.prod, self.shapes))


# ---- what may be branched ------------------------------------------------------------------------


def spatial(layer: nn.Module) -> bool:
    """A convolution whose windows overlap: a kernel that strides over its own length (patches, 1x1)
    is a linear layer of each window.
    """
    return isinstance(layer, nn.Conv1d | nn.Conv2d) and any(
        k > s for k, s in zip(layer.kernel_size, layer.stride, strict=True)
    )


def kinds(
    layer: nn.Module, most: int, *, linear: Linears = "copy", rank: int = 8
) -> tuple[Branch, ...]:
    """The branches that a layer can have beside its origin, at most so many.

    Of a k x k convolution 1x1, 1xk, kx1, average pooling, each once (of one axis 1 and average
    pooling); of any other layer, norms included, copies of its weight, or for `linear` "low-rank"
    factors of rank `rank`.
    """
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if not spatial(layer):
        low = linear == "low-rank" and weight.dim() > 1
        return (
            Branch("low-rank", factors(layer, rank))
            if low
            else Branch("kernel", (tuple(weight.shape),)),
        ) * most
    head, kernel = tuple(weight.shape[:2]), tuple(weight.shape[2:])
    ones = (1,) * len(kernel)
    long = [
        tuple(k if axis == kept else 1 for axis, k in enumerate(kernel))
        for kept in reversed(range(len(kernel)))
    ]
    small = [shape for shape in dict.fromkeys([ones, *long]) if shape != kernel]
    return (
        *(Branch("kernel", ((*head, *shape),)) for shape in small),
        Branch("average", ((*head, *ones),)),
    )[:most]


def factors(layer: nn.Module, rank: int) -> tuple[tuple[int, ...], ...]:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs = outgoing(layer)
    inputs = weight.numel() // outputs
    r = max(1, min(rank, outputs, inputs))
    return (outputs, r), (r, inputs)


def outgoing(layer: nn.Module) -> int:
    """Features that a layer gives: a linear one may keep its own as several axes of its weight."""
    # a Tensor
    return layer.out_features if isinstance(layer, nn.Linear) else len(layer.weight)  # type: ignore[arg-type]


# ---- arithmetic ----------------------------------------------------------------------------------


def pad(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros around a kernel, up to a shape; of an even number the larger half comes after."""
    around: list[int] = []
    for small, large in zip(reversed(value.shape), reversed(shape), strict=True):
        around += [(large - small) // 2, large - small - (large - small) // 2]
    return F.pad(value, around) if any(around) else value


def whole(branch: Branch, values: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A branch as a weight of the layer's shape."""
    match branch.kind:
        case "kernel":
            return pad(values[0], shape)
        case "average":
            return values[0].expand(tuple(shape)) / math.prod(shape[2:])
        case "low-rank":
            return (values[0] @ values[1]).reshape(tuple(shape))


def added(
    branches: Sequence[Branch], values: Sequence[Tensor], shape: Sequence[int]
) -> Tensor | None:
    """The sum of branches in the layer's shape; None of none. values: of all branches, one after
    another.
    """
    rest, total = iter(values), None
    for branch in branches:
        one = whole(branch, [next(rest) for _ in branch.shapes], shape)
        total = one if total is None else total + one
    return total


def merge(branches: Sequence[Branch], origin: Tensor, values: Sequence[Tensor]) -> Tensor:
    """W = origin + sum_i pad(b_i): eqs. 14, 16 and 18."""
    total = added(branches, values, origin.shape)
    return origin if total is None else origin + total


def reduced(branches: Sequence[Branch], weight: Tensor, values: Sequence[Tensor]) -> Tensor:
    """The origin by which W stays what it was: W - sum_i pad(b_i), eq. 15."""
    total = added(branches, values, weight.shape)
    return weight if total is None else weight - total


def drawn(
    branches: Sequence[Branch], weight: Tensor, init: Init, generator: torch.Generator
) -> list[Tensor]:
    """New branches, N(0, 0.1 std(W)), or zero; of a product by its entries, and with a first factor
    of zero where the product is to be.
    """
    std = SHARE * float(weight.std(correction=0))
    made = []
    for branch in branches:
        spread = (
            std if branch.kind != "low-rank" else math.sqrt(std / math.sqrt(branch.shapes[1][0]))
        )
        for index, shape in enumerate(branch.shapes):
            value = torch.zeros(shape)
            if init == "normal" or index:
                value.normal_(generator=generator).mul_(spread)
            made.append(value.to(weight))
    return made


def fused(
    kernel: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a convolution without bias and the batch norm behind it, which normalises
    by running statistics (DBB, transform I).

    F' = F gamma / sqrt(var + eps),  b' = beta - mean gamma / sqrt(var + eps), per output channel
    """
    level = gamma / torch.sqrt(var + eps)
    return kernel * level.reshape(-1, *[1] * (kernel.dim() - 1)), beta - mean * level


# ---- on modules ----------------------------------------------------------------------------------


class Sum(nn.Module):
    """A weight as the sum of its branches; PyTorch keeps what `right_inverse` gives as the
    parameters, the origin first.
    """

    def __init__(self, branches: Sequence[Branch], init: Init, generator: torch.Generator) -> None:
        super().__init__()
        self.branches, self.init, self.generator = tuple(branches), init, generator

    def forward(self, origin: Tensor, *values: Tensor) -> Tensor:
        return merge(self.branches, origin, values)

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        values = drawn(self.branches, weight, self.init, self.generator)
        return [reduced(self.branches, weight, values), *values]


def split(
    layer: nn.Module, branches: Sequence[Branch], init: Init, generator: torch.Generator
) -> None:
    """Gives a layer branches in place of its weight; its output stays, to rounding."""
    parametrize.register_parametrization(layer, "weight", Sum(branches, init, generator))


def join(layer: nn.Module) -> None:
    """Merges a layer's branches into its weight again."""
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def originals(layer: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of each branch of a layer, the origin first; of a layer without branches its
    weight.
    """
    if not parametrize.is_parametrized(layer, "weight"):
        return [[layer.weight]]  # type: ignore[list-item]  # a Parameter
    held: Any = layer.parametrizations["weight"]  # type: ignore[index]  # a ModuleDict
    values = iter(list(held.parameters()))
    return [[next(values)], *([next(values) for _ in branch.shapes] for branch in held[0].branches)]
