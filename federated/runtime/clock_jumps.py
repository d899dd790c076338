"""Detect jumps of the wall clock by comparing it with the monotonic clock, which all deadlines use.
Does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["JumpDetector", "read_offset"]

# seconds that do not count as a jump: gradual corrections of a clock stay far below
TOLERANCE = 5.0


def read_offset() -> float:
    """Return the seconds by which the wall clock is ahead of the monotonic clock."""
    return time.time() - time.monotonic()


class JumpDetector:
    """Compares both clocks at each `check`, and reports each jump once.

    read: returns the seconds by which the wall clock is ahead of the monotonic clock.
    """

    def __init__(self, read: Callable[[], float] = read_offset) -> None:
        self._read = read
        self._last = read()

    def check(self) -> str:
        """Return a message about a jump since the last check; empty if there was none."""
        before, self._last = self._last, self._read()
        seconds = self._last - before
        if abs(seconds) < TOLERANCE:
            return ""
        way = "forward" if seconds > 0 else "back"
        return (
            f"the wall clock moved {way} by {abs(seconds):.0f} s: it was set, or the machine "
            "slept; deadlines and timeouts are not affected"
        )
