"""The clock of a run: seconds that it was seen to last, over all processes that worked on it."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LEAP", "RunClock"]

# seconds: a machine that was suspended, or a process that was stopped, adds no more than these at
# once
LEAP = 60.0


class RunClock:
    """Never goes back, and never leaps. clock: seconds of any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last, self._seconds = clock(), 0.0
        self.still = False  # while the coordinator can hear nothing, nobody is late
        self.lost = 0.0  # seconds that passed and did not count

    def __call__(self) -> float:
        last, self._last = self._last, self._clock()
        passed = max(0.0, self._last - last)
        counted = 0.0 if self.still else min(passed, LEAP)
        self._seconds, self.lost = self._seconds + counted, self.lost + passed - counted
        return self._seconds

    def go_on(self, seconds: float) -> None:
        """Goes on from where an earlier process was."""
        self._seconds = max(self._seconds, seconds)
