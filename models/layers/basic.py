"""Small layers that several families share: standardisation, batch norm, scaled, flattened and
projected linear layers.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.nn.modules.batchnorm import _BatchNorm

from models.submodel import scale_count

__all__ = [
    "Flat",
    "Linear",
    "Norm",
    "ProjectedLinear",
    "Scaler",
    "Standardise",
    "project",
    "scale",
    "stack",
]

FEATURES = 256  # features of a projection head, at width 1


class Standardise(nn.Module):
    """(x - mean) / std per channel of raw input, [N, C, ...] of any dtype.

    Both constants come from the `Network` record: they are not parameters and are not sent, but an
    exported graph contains them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], axes: int) -> None:
        """Make the layer.

        axes: number of axes of one example, the channel axis included
        """
        super().__init__()
        shape = (-1,) + (1,) * (axes - 1)
        self.register_buffer("mean", torch.tensor(mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


class Scaler(nn.Module):
    """x / rate in training, x otherwise: compensates for the inputs that a narrow layer lacks
    (HeteroFL, arXiv 2010.01264, section 3).

    always: in evaluation too (code of ScaleFL's authors)
    """

    def __init__(self, rate: float, *, always: bool = False) -> None:
        super().__init__()
        self.rate, self.always = rate, always

    def forward(self, x: Tensor) -> Tensor:
        return x / self.rate if self.training or self.always else x

    def scale_eps(self, eps: float) -> float:
        """Return the eps with which a batch norm of self(x) equals one of x: norm(x / rate) with
        eps is norm(x) with eps * rate^2.

        So a norm's running statistics stay those of x, which is what it meets in evaluation.
        """
        return eps * self.rate**2 if self.training or self.always else eps


class Norm(_BatchNorm):
    """Batch norm over axis 1 of [N, C, ...], which may act as if its input were scaled (see
    `scale`).

    Its parameters and statistics may have several axes, with C numbers in all.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels, eps)
        self.scaler = Scaler(1.0)

    def forward(self, input: Tensor) -> Tensor:
        momentum = self.momentum
        if self.training:
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            # cumulative average, as in torch
            momentum = 1 / float(self.num_batches_tracked) if momentum is None else momentum  # type: ignore[arg-type]
        # views: training writes through them
        mean, var = self.running_mean.flatten(), self.running_var.flatten()  # type: ignore[union-attr]
        weight, bias, eps = (
            self.weight.flatten(),
            self.bias.flatten(),
            self.scaler.scale_eps(self.eps),
        )
        return F.batch_norm(input, mean, var, weight, bias, self.training, momentum or 0.0, eps)


class Linear(nn.Linear):
    """A linear layer without a batch norm after it; its output may be scaled (see `scale`)."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.scaler: nn.Module = nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        return self.scaler(super().forward(input))  # type: ignore[no-any-return]


def scale(net: nn.Module, rate: float, *, always: bool = False) -> None:
    """Add a Scaler to every module of `net` that has a `scaler`: before each batch norm, and after
    each linear layer without one.
    """
    for module in list(net.modules()):
        if hasattr(module, "scaler"):
            module.scaler = Scaler(rate, always=always)


class ProjectedLinear(nn.Linear):
    """A last linear layer behind a projection head: linear, relu, linear, as `project` makes it;
    [N, I] -> [N, O] (MOON, arXiv 2103.16257).

    Its weight and bias keep the names of the linear layer that it replaces, and it keeps that
    layer's bias.
    """

    def __init__(self, last: nn.Linear, features: int) -> None:
        super().__init__(features, last.out_features)
        self.bias = last.bias
        self.hidden = nn.Linear(last.in_features, last.in_features)
        self.project = nn.Linear(last.in_features, features)

    def forward(self, input: Tensor) -> Tensor:
        z = self.project(F.relu(self.hidden(input)))  # [N, features]
        return super().forward(z)


def project(net: nn.Module, rate: float) -> None:
    """Add a projection head before the last linear layer of `net`, its `linear`. ValueError: that
    is not an `nn.Linear`.
    """
    last = getattr(net, "linear", None)
    if not isinstance(last, nn.Linear):
        raise ValueError(
            "a projection head requires a network that ends in a linear layer; found "
            f"{type(last).__name__}"
        )
    net.linear = ProjectedLinear(last, scale_count(rate, FEATURES))


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
