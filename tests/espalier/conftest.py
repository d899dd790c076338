"""A tiny network and its data, as a notebook would define them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Data = tuple[NDArray[np.float32], NDArray[np.int64]]


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Let ctrl-C interrupt: a process started in the background of a shell ignores it."""
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, ours)


@pytest.fixture
def tiny() -> nn.Module:
    torch.manual_seed(0)
    return Tiny()


@pytest.fixture
def data() -> Data:
    x = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
