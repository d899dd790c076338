"""Time several functions in turns, so that disturbances affect all alike, and print the median of
each beside its limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Row", "lines", "time_interleaved"]

RUNS = 7


@dataclass(frozen=True)
class Row:
    """One measurement.

    ours: median milliseconds
    limit: median milliseconds that memory bandwidth alone allows
    ratio: limit / ours, at best 1
    """

    name: str
    ours: float
    limit: float
    ratio: float


def time_interleaved(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of each task, run in turns after a warm-up."""
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
