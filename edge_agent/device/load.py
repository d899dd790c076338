"""Measure how much of the processors other processes use, for measurements and for devices that
train only when idle. Does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection

import psutil

__all__ = ["BUSY", "Load", "measure_load"]

BUSY = 0.2  # fraction of the processors above which a machine counts as busy


class Load:
    """Measure the load from other processes since the last call.

    known: whether the system reports usage (Android does not); if not, every share is 0
    """

    known = True

    def __init__(self) -> None:
        self._last = self._look()

    def share(self) -> float:
        """Return the fraction, 0 to 1, of the processors that other processes used since the
        last call, without this process and its children.
        """
        before, self._last = self._last, self._look()
        (start, used, own), (end, used_now, own_now) = before, self._last
        spent = (end - start) * len(os.sched_getaffinity(0))
        others = (used_now - used) - max(0.0, own_now - own)
        return min(1.0, max(0.0, others / spent)) if spent > 0 else 0.0

    def _look(self) -> tuple[float, float, float]:
        """Return the time, the processor seconds used by all processes, and those used by this
        process and its children.
        """
        try:
            used = _busy_seconds(os.sched_getaffinity(0))
        except OSError:
            self.known = False
            return time.monotonic(), 0.0, 0.0
        own = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                # user and system time, with those of ended children
                own += sum(process.cpu_times()[:4])
        return time.monotonic(), used, own


def _busy_seconds(cpus: Collection[int]) -> float:
    """Return the busy seconds of processors since boot. OSError: the system does not report
    them.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    here = [per_cpu[cpu] for cpu in cpus if cpu < len(per_cpu)]
    guests = ("guest", "guest_nice")  # the kernel also counts these as user and nice
    return float(
        sum(
            sum(times)
            - times.idle
            - getattr(times, "iowait", 0.0)
            - sum(getattr(times, name, 0.0) for name in guests)
            for times in here
        )
    )


def measure_load(seconds: float = 0.5) -> float | None:
    """Return the fraction of the processors that other processes use over some seconds, or None
    if the system does not report it.
    """
    load = Load()
    time.sleep(seconds)
    share = load.share()
    return share if load.known else None
