"""Limit how much an agent counts by the number of examples that it claims to have."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

__all__ = ["limit_counts"]

MAX_RATIO = 10.0  # times the median


def limit_counts(counts: Iterable[int], ratio: float = MAX_RATIO) -> int:
    """Return the largest number with which one of these agents counts: a multiple of their median,
    the lower of the two middle numbers of an even number of agents.
    """
    return max(1, int(ratio * median_low(counts)))
