"""What counts of an update in the mean."""

from __future__ import annotations

import pytest
import torch

from coordinator.phases.training import BATCH, TOGETHER, count_together, limit_claims
from federated.engine import fused_addition
from federated.method import State
from federated.task import Recipe, Update
from models.menu import menu
from models.named_network import network

SUBMODEL = menu(network("mlp", (4,), 3), (1.0,), (1,))[0]


def test_an_update_counts_with_no_more_steps_than_its_limited_examples_take() -> None:
    """FedNova multiplies the mean change by the mean number of steps."""
    update = Update("r", 1, 1, "a", "train", SUBMODEL, "r0", 2**39, 2**34, {})
    recipe = Recipe(batch=32, epochs=2)
    found = limit_claims(update, recipe, 320)
    assert (found.samples, found.steps) == (320, 20)
    assert limit_claims(update, recipe, 0) is update
    assert limit_claims(update, recipe, 2**39) is update


def test_large_updates_are_added_one_by_one_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_addition, "is_installed", lambda: False)

    def count(size: int) -> int:
        tensors = {"w": torch.empty(size // 8, device="meta"), "b": torch.empty(size // 8)}
        return count_together(State(0, tensors, {}))

    assert count(4 * TOGETHER // 5) == 1
    assert count(TOGETHER // 3) == 3
    assert count(1 << 10) == BATCH
    assert count_together(State(0, {}, {})) == BATCH
    monkeypatch.setattr(fused_addition, "is_installed", lambda: True)
    assert count(4 * TOGETHER // 5) == BATCH
