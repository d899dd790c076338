"""Batch norm in training with a weight per example, so that a batch filled up with examples of
weight 0 gives the same result, gradients and statistics as the batch without them.

With s_n = weight_n / sum of weights, and L places per example and channel:

    mean = sum_n s_n sum_l x / L,   var = sum_n s_n sum_l (x - mean)^2 / L
    z = (x - mean) / sqrt(var + eps),   y = gamma z + beta
    dgamma = sum g z,   dbeta = sum g
    dx = gamma / sqrt(var + eps) (g - s_n / L (dbeta + z dgamma))

The running variance takes the unbiased var M / (M - 1), where M is the sum of weights times L.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode

__all__ = ["WeightedNorm"]

SIGNATURE = inspect.signature(F.batch_norm)


class Normalise(torch.autograd.Function):
    """(x [N, C, L], gamma [C], beta [C], shares [N], eps) -> y, mean [C], var [C]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, shares: Tensor, eps: float
    ) -> Any:
        mean = shares @ x.mean(2)
        centred = x - mean[:, None]
        var = shares @ centred.square().mean(2)
        rate = torch.rsqrt(var + eps)
        ctx.save_for_backward(centred, rate, gamma, shares)
        ctx.mark_non_differentiable(mean, var)
        return centred * (rate * gamma)[:, None] + beta[:, None], mean, var

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Any:
        centred, rate, gamma, shares = ctx.saved_tensors
        for_beta, along = g.sum((0, 2)), (g * centred).sum((0, 2))
        share = (shares / g.shape[2])[:, None, None]
        constant = share * for_beta[:, None]  # [N, C, 1]
        slope = share * (along * rate.square())[:, None]
        for_x = (rate * gamma)[:, None] * (g - constant - centred * slope)
        return for_x, along * rate, for_beta, None, None


def normalise(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, weights: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of x [N, C, ...], and the mean and the unbiased variance per channel."""
    gamma = x.new_ones(x.shape[1]) if gamma is None else gamma
    beta = x.new_zeros(x.shape[1]) if beta is None else beta
    flat, total = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2), weights.sum()
    y, mean, var = Normalise.apply(flat, gamma, beta, weights / total, eps)  # type: ignore[no-untyped-call]
    count = total * flat.shape[2]
    return y.reshape(x.shape), mean, var * (count / (count - 1))


class WeightedNorm(TorchFunctionMode):
    """Within this context, batch norm in training weighs its examples. weights: [N]."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        given = SIGNATURE.bind(*args, **(kwargs or {}))
        given.apply_defaults()
        asked = given.arguments
        if not asked["training"]:
            return func(*args, **(kwargs or {}))
        y, mean, var = normalise(
            asked["input"], asked["weight"], asked["bias"], self.weights, asked["eps"]
        )
        for running, found in ((asked["running_mean"], mean), (asked["running_var"], var)):
            if running is not None and asked["momentum"]:
                running.mul_(1 - asked["momentum"]).add_(found * asked["momentum"])
        return y
