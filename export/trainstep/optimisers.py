"""The update of a parameter w with its gradient g, for each optimiser of a recipe, as in
`torch.optim`.

    sgd:    d = g + decay w,  m' = momentum m + d,  w' = w - lr m'
    adam:   d = g + decay w,  m' = b1 m + (1 - b1) d,  v' = b2 v + (1 - b2) d^2,
            w' = w - lr (m' / c1) / (sqrt(v' / c2) + eps)
    adamw:  d = g, and w is first multiplied by 1 - lr decay

with b1 = 0.9, b2 = 0.999, eps = 1e-8. The caller gives c1 = 1 - b1^t and c2 = 1 - b2^t for step t =
1, 2, ..., because computing them in single precision would lose half of their digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from federated.task import Optimiser

__all__ = ["UPDATE_RULES"]

BETAS, EPS = (0.9, 0.999), 1e-8
Rates = Mapping[str, Tensor]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class UpdateRule:
    """How an optimiser updates one parameter.

    state: names of the tensors that it keeps for each parameter, zeros at first
    rates: names of the numbers that are inputs of every step, such as the learning rate
    apply: (parameter, gradient, its state, rates) -> new parameter and state
    """

    state: tuple[str, ...]
    rates: tuple[str, ...]
    apply: Callable[[Tensor, Tensor, State, Rates], tuple[Tensor, dict[str, Tensor]]]


def update_sgd(
    w: Tensor, g: Tensor, state: State, rates: Rates
) -> tuple[Tensor, dict[str, Tensor]]:
    m = rates["momentum"] * state["m"] + (g + rates["decay"] * w)
    return w - rates["lr"] * m, {"m": m}


def update_adam(
    w: Tensor, g: Tensor, state: State, rates: Rates
) -> tuple[Tensor, dict[str, Tensor]]:
    return take_adam_step(w, g + rates["decay"] * w, state, rates)


def update_adamw(
    w: Tensor, g: Tensor, state: State, rates: Rates
) -> tuple[Tensor, dict[str, Tensor]]:
    return take_adam_step(w * (1 - rates["lr"] * rates["decay"]), g, state, rates)


def take_adam_step(
    w: Tensor, d: Tensor, state: State, rates: Rates
) -> tuple[Tensor, dict[str, Tensor]]:
    m = BETAS[0] * state["m"] + (1 - BETAS[0]) * d
    v = BETAS[1] * state["v"] + (1 - BETAS[1]) * d.square()
    change = (m / rates["c1"]) / ((v / rates["c2"]).sqrt() + EPS)
    return w - rates["lr"] * change, {"m": m, "v": v}


ADAM = (("m", "v"), ("lr", "decay", "c1", "c2"))
UPDATE_RULES: Mapping[Optimiser, UpdateRule] = {
    "adam": UpdateRule(*ADAM, update_adam),
    "adamw": UpdateRule(*ADAM, update_adamw),
    "sgd": UpdateRule(("m",), ("lr", "momentum", "decay"), update_sgd),
}
