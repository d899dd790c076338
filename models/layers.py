"""Small layers that several families share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Linear", "Norm", "Scaler", "Standardise", "scale"]


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


class Norm(_BatchNorm):
    """Batch norm over axis 1 of [N, C, ...], its input scaled where a method asks for it (see `scale`)."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels, eps)
        self.scaler: nn.Module = nn.Identity()

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes: images, signals and features alike."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.scaler(input))


class Linear(nn.Linear):
    """A linear layer inside a network without batch norm, its output scaled where a method asks for it (see `scale`)."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.scaler: nn.Module = nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        return self.scaler(super().forward(input))  # type: ignore[no-any-return]


def scale(net: nn.Module, rate: float) -> None:
    """Puts a Scaler wherever a module of `net` has a place for one, its `scaler`: before each batch norm, after each linear of a network without."""
    for module in list(net.modules()):
        if hasattr(module, "scaler"):
            module.scaler = Scaler(rate)
