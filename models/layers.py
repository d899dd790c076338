"""Small layers that several families share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Scaler", "Standardise"]


class Standardise(nn.Module):
    """(x - mean) / std per channel of raw input, [N, C, ...] of any dtype.

    The two constants belong to the `Network` record: they are no parameters, do not travel, and end in an exported graph.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], axes: int) -> None:
        """axes: number of axes of one example, the channel axis included."""
        super().__init__()
        shape = (-1,) + (1,) * (axes - 1)
        self.register_buffer("mean", torch.tensor(mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


class Scaler(nn.Module):
    """x / rate while training, x otherwise: makes up for the inputs that a narrow layer lacks (HeteroFL, arXiv 2010.01264, section 3)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x / self.rate if self.training else x
