"""Notices, on a device at work, what makes its measurements old: heat that holds it back, or limits
that changed. No torch here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from edge_agent.device.heat import Heat, read_heat, throttled_between

__all__ = ["Watch"]

LOOK = 5.0  # seconds between looks
# seconds between two measurements because of heat: a device at its limit would measure itself all
# day
REST = 300.0
NOISE = 0.05  # share by which a limit must change


class Watch:
    """Looks at the device now and then; `due` says why it should measure itself again, empty while
    it need not.

    limits: processors and bytes that training may use, as they are now; no memory limit is
    infinity.
    """

    def __init__(
        self,
        limits: Callable[[], tuple[float, float]],
        heat: Callable[[], Heat] = read_heat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.due = ""
        self.fresh = False  # whether what was measured before must not be taken as known
        self._limits, self._heat, self._clock = limits, heat, clock
        self._held_to, self._last = limits(), heat()
        self._hot = bool(self._last.throttled)
        self._looked = self._cooled = clock()
        self._cooled -= REST  # heat may matter at once

    def look(self) -> str:
        """What is `due`, after a look where one is."""
        now = self._clock()
        if now - self._looked >= LOOK:
            self._looked = now
            self._look_at_limits()
            self._look_at_heat(now)
        return self.due

    def settled(self) -> None:
        """The device has measured itself."""
        if self.fresh:
            self._cooled = self._clock()
        self.due, self.fresh = "", False

    def _look_at_limits(self) -> None:
        found = self._limits()
        for before, after, spell in zip(self._held_to, found, (_processors, _memory), strict=True):
            if abs(after - before) > NOISE * min(before, after):
                self.due = f"its limit changed from {spell(before)} to {spell(after)}"
                self._held_to = found

    def _look_at_heat(self, now: float) -> None:
        """A change between held back and not, either way, is news."""
        before, self._last = self._last, self._heat()
        hot = throttled_between(before, self._last)
        if hot != self._hot and now - self._cooled >= REST:
            self._hot, self.fresh = hot, True
            self.due = (
                "the processor is throttled" if hot else "the processor is no longer throttled"
            )


def _processors(count: float) -> str:
    return f"{count:g} processors"


def _memory(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if size < math.inf else "no memory limit"
