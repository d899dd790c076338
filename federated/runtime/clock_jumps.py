"""Detect jumps of the wall clock by comparing it with the monotonic clock, which all deadlines use.
Does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TOLERANCE", "JumpDetector", "Reading", "measure_jump", "read_clocks"]

# seconds that do not count as a jump: gradual corrections of a clock stay far below
TOLERANCE = 5.0


@dataclass(frozen=True)
class Reading:
    """Both clocks at one moment.

    wall: seconds since 1970 by the machine's clock.
    monotonic: seconds since some moment, never set back.
    """

    wall: float
    monotonic: float


def read_clocks() -> Reading:
    return Reading(time.time(), time.monotonic())


def measure_jump(before: Reading, now: Reading) -> float:
    """Return the seconds by which the wall clock was set forward between two readings; below 0 if
    it was set back.
    """
    return (now.wall - before.wall) - (now.monotonic - before.monotonic)


class JumpDetector:
    """Compares both clocks at each `check`, and reports each jump once."""

    def __init__(self, read: Callable[[], Reading] = read_clocks) -> None:
        self._read = read
        self._last = read()

    def check(self) -> str:
        """Return a message about a jump since the last check; empty if there was none."""
        before, self._last = self._last, self._read()
        seconds = measure_jump(before, self._last)
        if abs(seconds) < TOLERANCE:
            return ""
        way = "forward" if seconds > 0 else "back"
        return (
            f"the wall clock moved {way} by {abs(seconds):.0f} s: it was set, or the machine "
            "slept; deadlines and timeouts are not affected"
        )
