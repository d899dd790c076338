"""Moves are those of torch.optim."""

from __future__ import annotations

import pytest
import torch

from export.trainstep.optimisers import UPDATE_RULES
from federated.training.training_step import OPTIMISERS

SETTINGS = {
    "sgd": {"momentum": 0.9},
    "adam": {},
    "adamw": {},
}


@pytest.mark.parametrize("name", UPDATE_RULES)
def test_three_moves(name) -> None:
    torch.manual_seed(0)
    w = torch.randn(5, dtype=torch.float64)
    theirs = w.clone().requires_grad_()
    optimiser = OPTIMISERS[name]([theirs], lr=0.1, weight_decay=0.2, **SETTINGS[name])
    move = UPDATE_RULES[name]
    state = {kind: torch.zeros_like(w) for kind in move.state}
    for t in (1, 2, 3):
        g = torch.randn(5, dtype=torch.float64)
        theirs.grad = g.clone()
        optimiser.step()
        rates = {
            **{"lr": 0.1, "momentum": 0.9, "decay": 0.2},
            **{"c1": 1 - 0.9**t, "c2": 1 - 0.999**t},
        }
        numbers = {key: torch.tensor(value, dtype=torch.float64) for key, value in rates.items()}
        w, state = move.apply(w, g, state, numbers)
        torch.testing.assert_close(w, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_every_optimiser_of_a_recipe_has_a_move() -> None:
    assert UPDATE_RULES.keys() == OPTIMISERS.keys()
