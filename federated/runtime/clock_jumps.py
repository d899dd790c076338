"""The wall clock, which may be set at any moment, watched against the steady one, which everything
that decides goes by. No torch here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TOLERANCE", "Jumps", "Reading", "jump", "read"]

# seconds between two looks that are no jump: clocks that are corrected gradually stay far below
TOLERANCE = 5.0


@dataclass(frozen=True)
class Reading:
    """Both clocks at one moment. wall: seconds since 1970 as the machine believes; steady: seconds
    since some moment, never set back.
    """

    wall: float
    steady: float


def read() -> Reading:
    return Reading(time.time(), time.monotonic())


def jump(before: Reading, now: Reading) -> float:
    """Seconds by which the wall clock was set forward (or back, below 0) between two readings."""
    return (now.wall - before.wall) - (now.steady - before.steady)


class Jumps:
    """Looks at both clocks again and again; each jump is told once."""

    def __init__(self, read: Callable[[], Reading] = read) -> None:
        self._read = read
        self._last = read()

    def look(self) -> str:
        """What to say of a jump since the last look; empty where there was none."""
        before, self._last = self._last, self._read()
        seconds = jump(before, self._last)
        if abs(seconds) < TOLERANCE:
            return ""
        way = "forward" if seconds > 0 else "back"
        return (
            f"the wall clock went {way} by {abs(seconds):.0f} s: it was set, or the machine "
            "slept; deadlines and timeouts go by another clock"
        )
