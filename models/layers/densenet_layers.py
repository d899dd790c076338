"""Norm and 1x1 convolution for DenseNet, whose layers read the features of all layers before. Their
parameters are stored in two parts, so that those of a narrow network are corners of a wide one's.

A dense layer reads [inputs | grown 0 | grown 1 | ...]. Each part of a narrow network is narrower,
so one tensor over the concatenation would not be a corner of the wide one. Each is therefore split
in two: one over the block's inputs, [..., channels], and one over the features that its layers
added, [..., layers, growth].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Norm

__all__ = ["SeenConv", "SeenNorm"]


class GrownNorm(Norm):
    """Batch norm of [N, layers * growth, H, W] with parameters and statistics [layers, growth]."""

    def __init__(self, layers: int, growth: int) -> None:
        super().__init__(layers * growth)
        self.weight = nn.Parameter(torch.ones(layers, growth))
        self.bias = nn.Parameter(torch.zeros(layers, growth))
        self.running_mean = torch.zeros(layers, growth)
        self.running_var = torch.ones(layers, growth)


class GrownConv(nn.Module):
    """1x1 convolution of [N, layers * growth, H, W] with weight [outputs, layers, growth]."""

    def __init__(self, layers: int, growth: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, layers, growth))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.flatten(1)[..., None, None])


class SeenNorm(nn.Module):
    """relu(norm) of a block's inputs [N, channels, H, W] and, separately, of all features grown so
    far [N, layers * growth, H, W].
    """

    def __init__(self, channels: int, layers: int, growth: int) -> None:
        super().__init__()
        self.inputs = Norm(channels)
        self.grown = GrownNorm(layers, growth) if layers else None

    def forward(self, x: Tensor, grown: Sequence[Tensor]) -> list[Tensor]:
        out = [F.relu(self.inputs(x))]
        return out if self.grown is None else [*out, F.relu(self.grown(torch.cat(list(grown), 1)))]


class SeenConv(nn.Module):
    """1x1 convolution of a SeenNorm's results: [N, outputs, H, W].

    Initialised for the total number of inputs, He-normal, or with a bias as a linear layer.
    """

    def __init__(
        self, channels: int, layers: int, growth: int, outputs: int, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.inputs = nn.Conv2d(channels, outputs, 1, bias=bias)
        self.grown = GrownConv(layers, growth, outputs) if layers else None
        fan = channels + layers * growth
        for weight in (self.inputs.weight, *(() if self.grown is None else (self.grown.weight,))):
            if bias:
                nn.init.uniform_(weight, -1 / sqrt(fan), 1 / sqrt(fan))
            else:
                nn.init.normal_(weight, 0, sqrt(2 / fan))
        if self.inputs.bias is not None:
            nn.init.zeros_(self.inputs.bias)

    def forward(self, seen: Sequence[Tensor]) -> Tensor:
        out = self.inputs(seen[0])
        return out if self.grown is None else out + self.grown(seen[1])  # type: ignore[no-any-return]
