"""Apply the coordinator's optimiser to one tensor: SGD with momentum, Adam, Yogi or Adagrad.

Reddi et al., Adaptive Federated Optimization (arXiv 2003.00295, Algorithm 2): the change D of a
tensor in a round, mean - w, takes the place of a negative gradient. With v_0 = tau^2 and m_0 = 0,

    m <- beta1 m + (1 - beta1) D
    adagrad     v <- v + D^2
    yogi        v <- v - (1 - beta2) D^2 sign(v - D^2)
    adam        v <- beta2 v + (1 - beta2) D^2
    w <- w + lr m / (sqrt(v) + tau)

`sgd` is FedAvgM of Hsu et al. (arXiv 1909.06335, section 4.3): m <- beta1 m + D, w <- w + lr m.
`adamw` is the original Adam (Kingma and Ba, arXiv 1412.6980, Algorithm 1), which starts from v_0 =
0 and divides m by 1 - beta1^t and v by 1 - beta2^t in step t, with the decoupled weight decay of
Loshchilov and Hutter (arXiv 1711.05101). It counts the steps of a whole tensor, so it suits tensors
that every round covers in the same place.

Coordinates that no update of a round covers keep their value and their moments. Moments are stored
in the coordinator's flat dict of tensors as `server/m/KEY`, `server/v/KEY` and `server/t/KEY`. No
device receives them, and checkpoints keep them bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from federated.engine.aggregate import Sum
from models.slicing import as_slices

__all__ = ["ServerOptimizer", "adamw", "coverage_mask", "step"]


@dataclass(frozen=True)
class ServerOptimizer:
    """Optimiser of the coordinator.

    rule: see the formulas of the module
    lr: learning rate
    beta1: decay of the momentum m per step; 0: no momentum, and none is stored
    beta2: decay of the mean square v per step, for adam and yogi
    tau: added to the root of v
    decay: decoupled weight decay
    corrected: True: m and v start at 0 and are divided by 1 - beta^t
    """

    rule: Literal["adagrad", "adam", "sgd", "yogi"]
    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    decay: float = 0.0
    corrected: bool = False


def adamw(lr: float, decay: float = 0.0) -> ServerOptimizer:
    """Return AdamW with PyTorch's defaults."""
    return ServerOptimizer("adam", lr, 0.9, 0.999, 1e-8, decay, corrected=True)


def step(
    optimizer: ServerOptimizer,
    tensors: Mapping[str, Tensor],
    key: str,
    old: Tensor,
    change: Tensor,
    held: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the tensor after one step, and its moments by their keys in the state.

    tensors: the state's tensors, with the moments of earlier steps
    key: name of the moments
    old: the tensor before the round
    change: change of the tensor in the round
    held: mask of the same shape, True for coordinates that an update covers; None: all
    """
    rule, beta1, beta2 = optimizer.rule, optimizer.beta1, optimizer.beta2
    homes = {name: f"server/{name}/{key}" for name in "mvt"}
    start = {"m": 0.0, "v": 0.0 if optimizer.corrected else optimizer.tau**2}
    before = {name: tensors.get(homes[name], torch.full_like(old, x)) for name, x in start.items()}
    after: dict[str, Tensor] = {}
    count = tensors.get(homes["t"], torch.zeros(1)) + 1
    move = change
    if beta1:
        move = beta1 * before["m"] + (1.0 if rule == "sgd" else 1 - beta1) * change
        after["m"] = move
    if rule != "sgd":
        square = mean_square(optimizer, before["v"], change.square())
        after["v"] = square
        if optimizer.corrected:
            move = move / (1 - beta1 ** float(count))
            square = square / (1 - beta2 ** float(count))
        move = move / (square.sqrt() + optimizer.tau)
    new = old * (1 - optimizer.lr * optimizer.decay) + optimizer.lr * move
    if held is not None:
        new = torch.where(held, new, old)
        after = {name: torch.where(held, value, before[name]) for name, value in after.items()}
    if optimizer.corrected:
        after["t"] = count
    return new, {homes[name]: value for name, value in after.items()}


def mean_square(optimizer: ServerOptimizer, v: Tensor, square: Tensor) -> Tensor:
    """Return the next v, given the square of the change."""
    fresh = (1 - optimizer.beta2) * square
    match optimizer.rule:
        case "adagrad":
            return v + square
        case "yogi":
            return v - fresh * torch.sign(v - square)
        case _:
            return optimizer.beta2 * v + fresh


def coverage_mask(one: Sum) -> Tensor:
    """Return a mask of a tensor: True for coordinates that an update of the round covers."""
    held = torch.zeros(one.value.shape, dtype=torch.bool)
    for where, (weight, *_) in one.cover.items():
        view = held[as_slices(where)]
        if isinstance(weight, Tensor):
            view |= (weight > 0).reshape(-1, *[1] * (held.dim() - 1))
        elif weight > 0:
            view.fill_(True)
    return held
