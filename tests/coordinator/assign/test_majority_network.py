"""Moments of devices are pooled exactly."""

from __future__ import annotations

import pytest

from coordinator.assign.majority_network import pool_moments


def test_moments_of_a_large_mean_are_pooled_to_all_digits() -> None:
    """Pooled from 0 and 2, and from 4 and 4 (whose deviation counts as 1), all plus 1e9: mean 2.5;
    (1 + 2.25 + 1 + 2.25) / 2.
    """
    mean, std = pool_moments([((1e9 + 1,), (1.0,), 2), ((1e9 + 4,), (1.0,), 2)])
    assert mean == (1e9 + 2.5,)
    assert std == (pytest.approx(3.25**0.5),)


def test_the_moments_of_one_device_are_its_own() -> None:
    assert pool_moments([((0.0, 3e8), (1e-9, 2.0), 7)]) == ((0.0, 3e8), (pytest.approx(1e-9), 2.0))
