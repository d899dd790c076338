"""Parallel branches of a layer for training, which merge exactly into one layer afterwards
(structural reparameterisation).

Ding et al., Diverse Branch Block (arXiv 2103.13425), as DynamicFL uses it (Nature Communications
2025, eqs. 14 to 18). Layers that are linear in their weight can be added: F1 * x + F2 * x = (F1 +
F2) * x, where the smaller kernel is first padded with zeros around its centre. So a layer with
weight W may train a sum of branches

    W = origin + sum_i pad(b_i)
    origin = W - sum_i pad(b_i)    when the branches are added (eq. 15)
    W <- origin + sum_i pad(b_i)   when they are merged (eq. 14)

and always computes what the single layer with W computes. Stride, groups and dilation are the
layer's and change nothing; a norm follows the sum. The branches are trained through W: the chain
rule gives each branch its part of W's gradient, as running them in parallel would, at the cost of
one layer. After a step of plain gradient descent W has moved by G * gradient, where G counts the
branches at each position of the kernel (Lemma 2). No branch has a norm: in training it would divide
by the statistics of the batch, so the expansion would change the output.
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
    "Linears",
    "available_branches",
    "is_spatial",
    "join",
    "merge",
    "originals",
    "output_features",
    "split",
    "subtract_branches",
]

Init = Literal["normal", "zeros"]
Linears = Literal["copy", "low-rank"]

SHARE = 0.1  # standard deviation of a new branch, as a fraction of the weight's


@dataclass(frozen=True)
class Branch:
    """One branch beside the origin.

    kind:
    - kernel: a weight as large as the layer's or smaller, zero-padded around its centre
    - average: a pointwise kernel after a mean over the layer's window, zeros of the padding
      included
    - low-rank: a product [out, r] [r, in]
    shapes: shapes of its tensors
    """

    kind: Literal["kernel", "average", "low-rank"]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def floats(self) -> int:
        return sum(map(math.prod, self.shapes))


# ---- which layers may have branches --------------------------------------------------------------


def is_spatial(layer: nn.Module) -> bool:
    """Return True if a layer is a convolution with overlapping windows. A kernel whose stride is
    its own size (patches, 1x1) is a linear layer of each window.
    """
    return isinstance(layer, nn.Conv1d | nn.Conv2d) and any(
        k > s for k, s in zip(layer.kernel_size, layer.stride, strict=True)
    )


def available_branches(
    layer: nn.Module, most: int, *, linear: Linears = "copy", rank: int = 8
) -> tuple[Branch, ...]:
    """Return the branches that a layer can have beside its origin, at most `most`.

    A k x k convolution can have 1x1, 1xk, kx1 and average pooling, each once (a convolution over
    one axis: 1 and average pooling). Any other layer, norms included, can have copies of its
    weight, or, if `linear` is "low-rank", factors of rank `rank`.
    """
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if not is_spatial(layer):
        low = linear == "low-rank" and weight.dim() > 1
        return (
            Branch("low-rank", list_factors(layer, rank))
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


def list_factors(layer: nn.Module, rank: int) -> tuple[tuple[int, ...], ...]:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs = output_features(layer)
    inputs = weight.numel() // outputs
    r = max(1, min(rank, outputs, inputs))
    return (outputs, r), (r, inputs)


def output_features(layer: nn.Module) -> int:
    """Return the number of a layer's output features; the weight of a linear layer may spread them
    over several axes.
    """
    # weight is a Tensor
    return layer.out_features if isinstance(layer, nn.Linear) else len(layer.weight)  # type: ignore[arg-type]


# ---- arithmetic ----------------------------------------------------------------------------------


def pad_kernel(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Pad a kernel with zeros up to a shape; if the padding is odd, the larger half comes after."""
    around: list[int] = []
    for small, large in zip(reversed(value.shape), reversed(shape), strict=True):
        around += [(large - small) // 2, large - small - (large - small) // 2]
    return F.pad(value, around) if any(around) else value


def expand(branch: Branch, values: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Return a branch as a weight of the layer's shape."""
    match branch.kind:
        case "kernel":
            return pad_kernel(values[0], shape)
        case "average":
            return values[0].expand(tuple(shape)) / math.prod(shape[2:])
        case "low-rank":
            return (values[0] @ values[1]).reshape(tuple(shape))


def sum_branches(
    branches: Sequence[Branch], values: Sequence[Tensor], shape: Sequence[int]
) -> Tensor | None:
    """Return the sum of branches in the layer's shape, or None without branches.

    values: tensors of all branches, one branch after another
    """
    rest, total = iter(values), None
    for branch in branches:
        one = expand(branch, [next(rest) for _ in branch.shapes], shape)
        total = one if total is None else total + one
    return total


def merge(branches: Sequence[Branch], origin: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Merge branches: W = origin + sum_i pad(b_i), eqs. 14, 16 and 18."""
    total = sum_branches(branches, values, origin.shape)
    return origin if total is None else origin + total


def subtract_branches(
    branches: Sequence[Branch], weight: Tensor, values: Sequence[Tensor]
) -> Tensor:
    """Return the origin that leaves W unchanged: W - sum_i pad(b_i), eq. 15."""
    total = sum_branches(branches, values, weight.shape)
    return weight if total is None else weight - total


def draw_branches(
    branches: Sequence[Branch], weight: Tensor, init: Init, generator: torch.Generator
) -> list[Tensor]:
    """Draw new branches from N(0, 0.1 std(W)), or set them to zero.

    A low-rank branch draws both factors so that the product's entries have that deviation; for
    zeros only the first factor is zero.
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


# ---- on modules ----------------------------------------------------------------------------------


class Sum(nn.Module):
    """A weight as the sum of its branches. PyTorch keeps the result of `right_inverse` as the
    parameters, the origin first.
    """

    def __init__(self, branches: Sequence[Branch], init: Init, generator: torch.Generator) -> None:
        super().__init__()
        self.branches, self.init, self.generator = tuple(branches), init, generator

    def forward(self, origin: Tensor, *values: Tensor) -> Tensor:
        return merge(self.branches, origin, values)

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        values = draw_branches(self.branches, weight, self.init, self.generator)
        return [subtract_branches(self.branches, weight, values), *values]


def split(
    layer: nn.Module, branches: Sequence[Branch], init: Init, generator: torch.Generator
) -> None:
    """Replace a layer's weight with branches; its output stays the same up to rounding."""
    parametrize.register_parametrization(layer, "weight", Sum(branches, init, generator))


def join(layer: nn.Module) -> None:
    """Merge a layer's branches back into its weight."""
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def originals(layer: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each branch of a layer, the origin first; for a layer without
    branches, its weight.
    """
    if not parametrize.is_parametrized(layer, "weight"):
        return [[layer.weight]]  # type: ignore[list-item]  # a Parameter
    held: Any = layer.parametrizations["weight"]  # type: ignore[index]  # a ModuleDict
    values = iter(list(held.parameters()))
    return [[next(values)], *([next(values) for _ in branch.shapes] for branch in held[0].branches)]
