"""Linear layers over flattened feature maps that keep channels as an axis, so that a narrow layer
is a corner of a wide one.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Linear

__all__ = ["Flat", "stack"]


class Flat(Linear):
    """A linear layer over a map [N, channels, ...] of `positions` places; its weight is [outputs,
    channels, positions].
    """

    def __init__(self, channels: int, positions: int, outputs: int) -> None:
        super().__init__(channels * positions, outputs)
        self.weight = nn.Parameter(self.weight.detach().reshape(outputs, channels, positions))

    def forward(self, input: Tensor) -> Tensor:
        return self.scaler(F.linear(input.flatten(1), self.weight.flatten(1), self.bias))  # type: ignore[no-any-return]


def stack(channels: int, positions: int, widths: list[int]) -> nn.ModuleList:
    """Return linear layers of these widths; the first reads a feature map."""
    layers: list[nn.Module] = [Flat(channels, positions, width) for width in widths[:1]]
    return nn.ModuleList(layers + [Linear(before, width) for before, width in pairwise(widths)])
