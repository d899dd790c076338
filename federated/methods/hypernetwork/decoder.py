"""Decode a node's features into its tensors: slices, tiles and the initial scale of weights.

The decoder of RecipFL (Zhang et al., How Few Davids Improve One Goliath; the authors' code, which
follows GHN-2, Knyazev et al., arXiv 2110.13100, section 3.2): one perceptron per kind of tensor
makes the largest of its kind. Smaller ones are its leading corner, larger ones repeat it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.methods.hypernetwork.operation_graph import Role
from models.slicing import as_slices, corner

__all__ = ["Decoder", "bounding_shape", "cap_shape", "normalise", "tile"]


class Decoder(nn.Module):
    """Linear, relu, linear, from [N, inputs] to [N, *shape]: the tensors of N nodes.

    The last weight is [*shape, hidden] and the bias [*shape], so that the tensors of a hypernetwork
    show the shapes that it makes. `push` is [hidden], added before the relu.
    """

    def __init__(self, inputs: int, hidden: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        last = nn.Linear(hidden, math.prod(shape))
        self.weight = nn.Parameter(last.weight.detach().reshape(*shape, hidden))
        self.bias = nn.Parameter(last.bias.detach().reshape(*shape))

    def forward(self, x: Tensor, push: Tensor | None = None) -> Tensor:
        found = self.first(x) if push is None else self.first(x) + push
        made = F.linear(F.relu(found), self.weight.flatten(0, -2), self.bias.flatten())
        return made.reshape(-1, *self.bias.shape)


def tile(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `value` in another shape with as many axes: cut where it is longer, repeated where it
    is shorter.
    """
    value = value[as_slices(corner([min(a, b) for a, b in zip(value.shape, shape, strict=True)]))]
    if tuple(value.shape) == tuple(shape):
        return value
    repeated = value.repeat([-(-n // m) for n, m in zip(shape, value.shape, strict=True)])
    return repeated[as_slices(corner(shape))]


def normalise(value: Tensor, role: Role, factor: float) -> Tensor:
    """Return factor * value for a weight, 2 sigmoid(value / 2) in (0, 2) for the scale of a
    normalising layer, and tanh(value / 5) for a bias.
    """
    if role == "weight":
        return value * factor
    return 2 * torch.sigmoid(value / 2) if role == "scale" else torch.tanh(0.2 * value)


def bounding_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the smallest shape that holds each of these."""
    return tuple(max(axes) for axes in zip(*shapes, strict=True))


def cap_shape(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Return a shape with at most `most` numbers: its longest axis is halved until it fits."""
    found = list(shape)
    while math.prod(found) > most:
        axis = found.index(max(found))
        found[axis] = -(-found[axis] // 2)
    return tuple(found)
