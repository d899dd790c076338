"""How many updates are added together."""

from __future__ import annotations

import pytest
import torch

from coordinator.phases.training import BATCH, TOGETHER, count_together
from federated.engine import fused_addition
from federated.method import State


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
