"""Measure for how many seconds a run has been running, across restarts of the coordinator. Time in
which agents can send or transfer nothing does not count. Limit the share of the time that repeated
work takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["RunClock", "TimeShare"]

# seconds: the most that one reading adds, after the machine was suspended or the process stopped
LEAP = 60.0
# of the time, for work that looks at the whole fleet, and seconds that it waits at most
SHARE, LONGEST_PAUSE = 0.02, 10.0


class RunClock:
    """A clock that never goes back and never leaps. clock: seconds since any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last, self._seconds = clock(), 0.0
        self._stopped = set[str]()  # why it is stopped
        self.lost = 0.0  # seconds that passed and were not counted
        self._earlier = 0.0  # seconds of earlier processes

    def __call__(self) -> float:
        last, self._last = self._last, self._clock()
        passed = max(0.0, self._last - last)
        counted = 0.0 if self._stopped else min(passed, LEAP)
        self._seconds, self.lost = self._seconds + counted, self.lost + passed - counted
        return self._seconds

    def measure_all(self) -> float:
        """Return the seconds of this process, with those that do not count."""
        return self() + self.lost - self._earlier

    def stop(self, reason: str) -> None:
        """Stop while agents cannot send or transfer anything, so that none becomes late."""
        self()
        self._stopped.add(reason)

    def start(self, reason: str) -> None:
        """Continue, unless there is another reason to stop."""
        self()
        self._stopped.discard(reason)

    def resume(self, seconds: float) -> None:
        """Continue from the reading of an earlier process."""
        before, self._seconds = self._seconds, max(self._seconds, seconds)
        self._earlier += self._seconds - before


class TimeShare:
    """Spaces out work that looks at the whole fleet, so that it takes at most SHARE of the time
    however large the fleet is, unless it takes very long.
    """

    def __init__(self, clock: Callable[[], float], least: float = 0.0) -> None:
        """clock: in seconds. least: seconds between two beginnings of the work, at least."""
        self._least, self._clock, self._due = least, clock, -math.inf

    @property
    def pause(self) -> float:
        """Seconds until the work is due; 0 if it is."""
        return max(0.0, self._due - self._clock())

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Measure the work in the block, and find out when it is due again."""
        start = self._clock()
        yield
        end = self._clock()
        pause = min(LONGEST_PAUSE, (end - start) / SHARE)
        self._due = max(start + self._least, end + pause)
