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


def test_a_liar_that_is_alone_on_its_submodel_is_clipped_to_the_median_of_all(tmp_path):
    """Its own norm would be the median of its group. The others are 1 and 2 long."""
    pair = part([1.0, 0.0], shape=(3,)), part([0.0, 2.0], shape=(3,))
    kept = store_parts(tmp_path, *pair, part([0.0, 0.0, 900.0]))
    found = result(kept, {"w": torch.zeros(3)}, "clip", 1).tolist()
    assert found == pytest.approx([1 / 3, 1 / 3, 2.0])


def test_a_group_with_an_honest_majority_keeps_its_own_median(tmp_path):
    """Three large updates, 6 long, beside five small ones, 1 long."""
    large = [part([0.0, 6.0])] * 3
    small = [part([1.0], shape=(2,))] * 5
    kept = store_parts(tmp_path, *small, *large)
    assert result(kept, {"w": torch.zeros(2)}, "clip", 1).tolist() == pytest.approx([5 / 8, 6.0])
