"""Time tasks in turns with what they are compared to, such as plain copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["RUNS", "time_interleaved"]

RUNS = 7
T = TypeVar("T")


def time_interleaved(
    tasks: Mapping[T, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[T, float]:
    """Return the median milliseconds of each task, run in turns. clock: returns seconds."""
    times: dict[T, list[float]] = {name: [] for name in tasks}
    for turn in range(RUNS + 1):
        for name, task in tasks.items():
            start = clock()
            task()
            if turn:  # the first one is a warm-up
                times[name].append(1000 * (clock() - start))
    return {name: statistics.median(each) for name, each in times.items()}
