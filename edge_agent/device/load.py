"""How much of the processors is used by others: what a measurement must know, and a device that is
to train only when idle. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection

import psutil

__all__ = ["BUSY", "Load", "busy"]

BUSY = 0.2  # share of the processors from which on a machine counts as used by others


class Load:
    """Looks at the processors that this process may use; each look tells of the time since the last
    one.

    known: whether the system lets anyone look (Android does not); where it does not, every share is
    0.
    """

    known = True

    def __init__(self) -> None:
        self._last = self._look()

    def share(self) -> float:
        """Share, 0 to 1, of the processors that other processes used since the last look; this
        process and those it started do not count.
        """
        before, self._last = self._last, self._look()
        (start, used, own), (end, used_now, own_now) = before, self._last
        spent = (end - start) * len(os.sched_getaffinity(0))
        others = (used_now - used) - max(0.0, own_now - own)
        return min(1.0, max(0.0, others / spent)) if spent > 0 else 0.0

    def _look(self) -> tuple[float, float, float]:
        """The time, the seconds that the processors were used by anyone, and those by this process
        and what it started.
        """
        try:
            used = _used(os.sched_getaffinity(0))
        except OSError:
            self.known = False
            return time.monotonic(), 0.0, 0.0
        own = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                # user and system, with those of children that ended
                own += sum(process.cpu_times()[:4])
        return time.monotonic(), used, own


def _used(cpus: Collection[int]) -> float:
    """Seconds that processors were used by anyone since the start. Raises OSError where the system
    does not tell.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    here = [per_cpu[cpu] for cpu in cpus if cpu < len(per_cpu)]
    guests = ("guest", "guest_nice")  # which the kernel counts under user and nice as well
    return float(
        sum(
            sum(times)
            - times.idle
            - getattr(times, "iowait", 0.0)
            - sum(getattr(times, name, 0.0) for name in guests)
            for times in here
        )
    )


def busy(seconds: float = 0.5) -> float | None:
    """Share of the processors that other processes use, looked at for some seconds; None where the
    system does not tell.
    """
    load = Load()
    time.sleep(seconds)
    share = load.share()
    return share if load.known else None
