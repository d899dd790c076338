"""Measure the latency of single calls: percentiles after a warm-up. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Latency", "measure_latency"]

WARM_UP = 10  # calls before the measurement
RUNS = 100  # minimum number of measured calls
SECONDS = 3.0  # minimum duration of the measurement


@dataclass(frozen=True)
class Latency:
    """Seconds per call.

    least: the fastest call
    p50, p90, p95, p99: percentiles; p90 is the headline
    runs: number of measured calls
    """

    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    runs: int


def measure_latency(
    call: Callable[[], object],
    *,
    warm_up: int = WARM_UP,
    runs: int = RUNS,
    seconds: float = SECONDS,
) -> Latency:
    """Measure at least `runs` calls for at least `seconds`, one after the other (single stream,
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
