"""The task that every project simulates: a small convolutional network learns handwritten digits by
FedAvg, on 10 of 50 devices a round, which take one step each on all of their data.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from coordinator.simulate.device_data import DataSource
from models.layers.basic import Standardise

__all__ = [
    "CHOSEN",
    "DEVICES",
    "LR",
    "SOURCE",
    "build_network",
    "load_devices",
    "make_layers",
    "measure_accuracy",
]

DEVICES, CHOSEN = 50, 10  # in all, and a round
LR = 0.2
SOURCE = DataSource("digits", None, DEVICES, "iid", seed=0, held=0.1)


def make_layers() -> nn.Module:
    """Return the network, of 3,130 weights: [N, 1, 8, 8] -> [N, 10]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),  # [N, 16, 4, 4]
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),  # [N, 16, 2, 2]
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def build_network() -> nn.Module:
    """Return the network of other projects: the layers after the standardisation of raw digits."""
    torch.manual_seed(0)
    return nn.Sequential(Standardise((5.0,), (6.0,), 3), make_layers()).train()


@cache
def load_devices() -> list[tuple[Tensor, Tensor]]:
    """Return the examples and labels of each device."""
    every = [SOURCE.device(index) for index in range(DEVICES)]
    return [(torch.from_numpy(one.x), torch.from_numpy(one.y).long()) for one in every]


def measure_accuracy(net: nn.Module) -> float:
    """Return the fraction of right answers on digits that no device has."""
    whole = SOURCE.whole
    with torch.no_grad():
        answers = net.eval()(torch.from_numpy(whole.x_held)).argmax(1).numpy()
    return float((answers == whole.y_held).mean())
