"""One move of a parameter w by its gradient g, for each optimiser of a recipe, as in `torch.optim`.

    sgd:    d = g + decay w,  m' = momentum m + d,  w' = w - lr m'
    adam:   d = g + decay w,  m' = b1 m + (1 - b1) d,  v' = b2 v + (1 - b2) d^2,
            w' = w - lr (m' / c1) / (sqrt(v' / c2) + eps)
    adamw:  d = g, and w is first multiplied by 1 - lr decay

with b1 = 0.9, b2 = 0.999, eps = 1e-8. The caller gives c1 = 1 - b1^t and c2 = 1 - b2^t for step t =
1, 2, ..., because single precision would lose half of their digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from federated.task import Optimiser

__all__ = ["MOVES"]

BETAS, EPS = (0.9, 0.999), 1e-8
Rates = Mapping[str, Tensor]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Move:
    """How an optimiser moves one parameter.

    state: names of what it keeps for each parameter, zeros at first
    rates: names of its numbers, inputs of every step
    apply: (parameter, gradient, its state, rates) -> new parameter and state
    """

    state: tuple[str, ...]
    rates: tuple[str, ...]
    apply: Callable[[Tensor, Tensor, State, Rates], tuple[Tensor, dict[str, Tensor]]]


def move_sgd(w: Tensor, g: Tensor, state: State, rates: Rates) -> tuple[Tensor, dict[str, Tensor]]:
    m = rates["momentum"] * state["m"] + (g + rates["decay"] * w)
    return w - rates["lr"] * m, {"m": m}


def move_adam(w: Tensor, g: Tensor, state: State, rates: Rates) -> tuple[Tensor, dict[str, Tensor]]:
    return adapt(w, g + rates["decay"] * w, state, rates)


def move_adamw(
    w: Tensor, g: Tensor, state: State, rates: Rates
) -> tuple[Tensor, dict[str, Tensor]]:
    return adapt(w * (1 - rates["lr"] * rates["decay"]), g, state, rates)


def adapt(w: Tensor, d: Tensor, state: State, rates: Rates) -> tuple[Tensor, dict[str, Tensor]]:
    m = BETAS[0] * state["m"] + (1 - BETAS[0]) * d
    v = BETAS[1] * state["v"] + (1 - BETAS[1]) * d.square()
    by = (m / rates["c1"]) / ((v / rates["c2"]).sqrt() + EPS)
    return w - rates["lr"] * by, {"m": m, "v": v}


ADAM = (("m", "v"), ("lr", "decay", "c1", "c2"))
MOVES: Mapping[Optimiser, Move] = {
    "adam": Move(*ADAM, move_adam),
    "adamw": Move(*ADAM, move_adamw),
    "sgd": Move(("m",), ("lr", "momentum", "decay"), move_sgd),
}
