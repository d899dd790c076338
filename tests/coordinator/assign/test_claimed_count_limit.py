"""The number with which an agent's claimed examples count."""

from __future__ import annotations

import pytest

from coordinator.assign.claimed_count_limit import limit_counts


@pytest.mark.parametrize(
    ("counts", "ratio", "most"),
    [
        ([5], 10, 50),
        ([7, 2**39], 10, 70),
        ([1, 50, 2**39], 10, 500),
        ([4, 4, 2**39, 2**39], 2.5, 10),
        ([1, 1], 0.1, 1),
    ],
)
def test_the_limit_is_a_multiple_of_the_lower_median(
    counts: list[int], ratio: float, most: int
) -> None:
    assert limit_counts(counts, ratio) == most
