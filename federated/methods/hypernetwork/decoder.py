"""From a node's features to its tensors: decoders, slices, tiles and the scale that weights begin
with.

The decoder of RecipFL (Zhang et al., How Few Davids Improve One Goliath; the authors' code, which
follows GHN-2, Knyazev et al., arXiv 2110.13100, section 3.2): one perceptron per kind of tensor
makes the largest of the kind, smaller ones are its leading corner, larger ones repeat it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.methods.hypernetwork.graph import Role
from models.slicing import as_slices, corner

__all__ = ["Decoder", "capped", "largest", "normalised", "tile"]


class Decoder(nn.Module):
    """linear, relu, linear, [N, inputs] -> [N, *shape]: the tensors of N nodes. push: [hidden],
    added before the relu.

    The last weight is [*shape, hidden] and the bias [*shape], so that a hypernetwork's tensors say
    what it makes.
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
    """`value` in another shape of as many axes: its leading part where it is longer, repeated where
    it is shorter.
    """
    value = value[as_slices(corner([min(a, b) for a, b in zip(value.shape, shape, strict=True)]))]
    if tuple(value.shape) == tuple(shape):
        return value
    repeated = value.repeat([-(-n // m) for n, m in zip(shape, value.shape, strict=True)])
    return repeated[as_slices(corner(shape))]


def normalised(value: Tensor, role: Role, factor: float) -> Tensor:
    """weight: factor * value. scale, of a normalising layer: 2 sigmoid(value / 2), in (0, 2). bias:
    tanh(value / 5).
    """
    if role == "weight":
        return value * factor
    return 2 * torch.sigmoid(value / 2) if role == "scale" else torch.tanh(0.2 * value)


def largest(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The smallest shape that holds each of these."""
    return tuple(max(axes) for axes in zip(*shapes, strict=True))


def capped(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """A shape of at most so many numbers: its longest axis is halved until it fits."""
    found = list(shape)
    for _ in itertools.takewhile(lambda _: math.prod(found) > most, itertools.count()):
        axis = found.index(max(found))
        found[axis] = -(-found[axis] // 2)
    return tuple(found)
