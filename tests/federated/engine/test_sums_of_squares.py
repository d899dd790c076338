"""Sums of squares of arrays and of differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from federated.engine import sums_of_squares
from federated.engine.sums_of_squares import sum_squares


def test_small_arrays_are_summed_exactly() -> None:
    values = np.array([[3.0, 4.0], [0.0, 12.0]], np.float32)
    assert sum_squares(values) == 169.0
    assert sum_squares(values, np.array([[0.0, 4.0], [0.0, 0.0]], np.float32)) == 153.0
    assert sum_squares(np.array(-2.0, np.float32), np.array(1.0, np.float32)) == 9.0
    assert sum_squares(np.zeros((0, 3), np.float32)) == 0.0


@pytest.mark.parametrize("shape", [(50,), (7, 9), (3, 40), (5, 2, 3)])
def test_blocks_and_strides_do_not_matter(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_of_squares, "BLOCK", 16)
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    whole = np.ones([2 * n for n in shape], np.float32)
    corner = whole[tuple(slice(n) for n in shape)]
    assert sum_squares(values) == float(np.square(values).sum())
    assert sum_squares(values, corner) == float(np.square(values - 1).sum())


def test_squares_beyond_float32_are_summed() -> None:
    huge = np.array([3e30, 4e30], np.float32)
    assert sum_squares(huge) == pytest.approx(25e60, rel=1e-6)
    assert sum_squares(huge, np.array([0.0, 4e30], np.float32)) == pytest.approx(9e60, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sum_with_an_infinite_entry_is_not_finite(value: float) -> None:
    assert not math.isfinite(sum_squares(np.array([1.0, value], np.float32)))
    assert not math.isfinite(
        sum_squares(np.array([1.0, 2.0], np.float32), np.array([1.0, value], np.float32))
    )
