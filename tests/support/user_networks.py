"""Users' networks without support for submodels, and checks of their submodels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.menu import menu
from models.slicing import corners, extract
from models.submodel import Network, Submodel
from models.submodel_building import build, initial, shapes, statistics

Named = Callable[..., Network]
"""The fixture `named`: makes the network of a function."""


def at(made: Network, width: float, depth: int = 1) -> Submodel:
    return menu(made, (width,), (depth,))[0]


def sizes(made: Network, width: float = 0.5) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a narrow network, without biases."""
    return {
        name.removeprefix("net."): shape
        for name, shape in shapes(at(made, width)).items()
        if not name.endswith("bias")
    }


def run_passes(submodel: Submodel) -> Tensor:
    """Return the outputs of a submodel's network with the extracted corner of the whole, and train
    it.
    """
    local = shapes(submodel) | statistics(submodel)
    tensors = initial(submodel.network, 0)
    net = build(submodel)
    missing, unexpected = net.load_state_dict(
        extract(tensors, corners({k: tuple(v.shape) for k, v in tensors.items()}, submodel, local)),
        strict=False,
    )
    assert not unexpected
    assert not local.keys() & set(missing)
    x = torch.rand((3, *submodel.network.inputs), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = net.eval()(x)
    net.train()(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    return out  # type: ignore[no-any-return]


def cnn(width: int = 8) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
    )
    return nn.Sequential(
        body, nn.Conv2d(width, 2 * width, 3), nn.GELU(), nn.Flatten(), nn.Linear(2 * width * 4, 10)
    )


class Basic(nn.Module):
    """A residual block in torchvision's style."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.conv2, self.norm2 = (
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
            if stride > 1
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.layer1 = nn.Sequential(*(Basic(6, 6) for _ in range(3)))
        self.layer2 = nn.ModuleList([Basic(6, 8, 2), Basic(8, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        for block in self.layer2:
            x = block(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A network of which no part can be narrowed."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x[:, 0])[0][:, -1])  # type: ignore[no-any-return]


class Unused(nn.Module):
    """Has a layer that its forward pass does not reach, and one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.spare = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.hidden.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)))  # type: ignore[no-any-return]


class Growing(nn.Module):
    """Ends in a transposed convolution, whose gradient has no decomposition."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        channels = submodel.network.inputs[0]
        self.conv, self.head = nn.ConvTranspose2d(channels, 4, 3), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]
