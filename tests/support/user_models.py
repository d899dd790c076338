"""Networks of a user, for `--model tests.support.user_models:small`."""

from __future__ import annotations

import math

from torch import Tensor, nn

from models.submodel import Submodel


def small(submodel: Submodel) -> nn.Module:
    """Return two linear layers; the hidden one scales with the width."""
    network = submodel.network
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(network.inputs), 32),
        nn.ReLU(),
        nn.Linear(32, network.outputs),
    )


class Block(nn.Module):
    """A residual block; the second of two can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def residual() -> nn.Module:
    """Return a small CNN for digits."""
    stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(
        stem, Block(), Block(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 4 * 4, 10)
    )
