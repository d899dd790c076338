"""Rows of a benchmark, and how they are timed: medians of interleaved runs, so that a machine's
moods hit all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Row", "interleaved", "lines"]

RUNS = 7


@dataclass(frozen=True)
class Row:
    """ours, limit: milliseconds, medians; the limit is what the memory alone allows. ratio: limit /
    ours, 1 at best.
    """

    name: str
    ours: float
    limit: float
    ratio: float


def interleaved(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each, run in turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(RUNS + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn:
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def lines(rows: Sequence[Row]) -> list[str]:
    return [
        f"{'':28}{'ours ms':>10}{'limit ms':>10}{'ratio':>8}",
        *(f"{r.name:28}{r.ours:10.2f}{r.limit:10.2f}{r.ratio:8.2f}" for r in rows),
    ]
