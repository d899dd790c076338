"""How long a call takes, one at a time: percentiles after a warm-up. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Latency", "latency"]

WARM_UP = 10  # calls not counted
RUNS = 100  # and at least so many that are
SECONDS = 3.0  # for at least so long


@dataclass(frozen=True)
class Latency:
    """Seconds of one call: the least, the percentiles and how many calls they are of. p90 is the
    headline.
    """

    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    runs: int


def latency(
    call: Callable[[], object],
    *,
    warm_up: int = WARM_UP,
    runs: int = RUNS,
    seconds: float = SECONDS,
) -> Latency:
    """Calls at least `runs` times and for at least `seconds`, one after the other (single stream,
    as a device answers).
    """
    for _ in range(warm_up):
        call()
    times, start = list[float](), time.perf_counter()
    while len(times) < runs or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    p50, p90, p95, p99 = (float(value) for value in np.percentile(times, (50, 90, 95, 99)))
    return Latency(min(times), p50, p90, p95, p99, len(times))
