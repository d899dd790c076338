"""Clipping in a round before which no norm is known."""

from __future__ import annotations

import pytest
import torch

from tests.support.stored_updates import part, result, store_parts


def test_a_first_round_is_clipped_to_the_median_of_its_own_norms(tmp_path):
    """Lengths 1, 2 and 900: the last becomes 2 long."""
    kept = store_parts(tmp_path, part([1.0, 0.0]), part([0.0, 2.0]), part([900.0, 0.0]))
    assert result(kept, {"w": torch.zeros(2)}, "clip", 1).tolist() == [1.0, pytest.approx(2 / 3)]


def test_of_two_first_updates_a_lie_is_as_short_as_the_other(tmp_path):
    kept = store_parts(tmp_path, part([1.0, 0.0]), part([0.0, 1e6]))
    assert result(kept, {"w": torch.zeros(2)}, "clip", 1).tolist() == pytest.approx([0.5, 0.5])
