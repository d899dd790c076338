"""Blocks of post-activation ResNets: residual blocks, projections, and the projection that remains
when a section's first block is skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Norm

__all__ = ["Block", "Projection", "Skipped"]


class Projection(nn.Module):
    """Shortcut that changes channels or resolution; [N, I, H, W] -> [N, O, H/stride, W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norm = Norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


class Skipped(nn.Module):
    """The projection that remains of a section's skipped first block, as with a step of 0."""

    def __init__(self, shortcut: Projection) -> None:
        super().__init__()
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x))


class Block(nn.Module):
    """relu(shortcut(x) + step * F(x)), where F is two 3x3 convolutions or a bottleneck; [N, I, H,
    W] -> [N, O, H/stride, W/stride].

    inner: channels between a bottleneck's two 1x1 convolutions, 0 for the plain block
    shortcut: None for the identity
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        inner: int,
        stride: int,
        shortcut: Projection | None,
        *,
        step: bool,
    ) -> None:
        super().__init__()
        if inner:
            self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
            self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        else:
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = Norm(inner or outputs), Norm(inner or outputs)
        self.norm3 = Norm(outputs) if inner else None
        self.shortcut = shortcut
        self.step = nn.Parameter(torch.ones(1)) if step else None

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(x)
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.norm3 is not None:
            out = self.norm3(self.conv3(F.relu(out)))
        return F.relu(short + (out if self.step is None else self.step * out))
