"""Detect when a device's measurements become outdated: it throttles, or its limits change. Note its
present condition for heartbeats. Does not import torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from edge_agent.device.background_reading import BackgroundReading
from edge_agent.device.board import Power, read_power
from edge_agent.device.heat_and_load import Heat, has_throttled, read_heat
from federated.wire.messages import Condition

__all__ = ["Watch"]

LOOK = 5.0  # seconds between checks
# seconds between two measurements because of heat: a device at its limit would measure all day
REST = 300.0
POWER = 60.0  # seconds between two looks at the power source, which start a program on phones
NOISE = 0.05  # smallest relative change of a limit


class Watch:
    """Check the device at intervals; `due` says why it should measure again, or is empty.

    limits: returns the processors and bytes that training may use now; infinity without a memory
        limit
    """

    def __init__(
        self,
        limits: Callable[[], tuple[float, float]],
        heat: Callable[[], Heat] = read_heat,
        clock: Callable[[], float] = time.monotonic,
        power: Callable[[], Power] = read_power,
    ) -> None:
        self.due = ""
        self.fresh = False  # whether cached measurements must be ignored
        self._limits, self._heat, self._clock = limits, heat, clock
        self._power = BackgroundReading(power)
        self._held_to, self._last = limits(), heat()
        self._hot = bool(self._last.throttled)
        self._looked = self._powered = self._cooled = clock()
        self._cooled -= REST  # heat may trigger at once

    @property
    def condition(self) -> Condition:
        """The condition of the device at the last check."""
        return Condition(self._last.celsius, self._last.throttled, self._power.latest)

    def look(self) -> str:
        """Check the device if an interval has passed, and return `due`."""
        now = self._clock()
        if now - self._looked >= LOOK:
            self._looked = now
            self._look_at_limits()
            self._look_at_heat(now)
        if now - self._powered >= POWER:
            self._powered = now
            self._power.refresh()
        return self.due

    def reset(self) -> None:
        """Reset after the device has measured itself."""
        if self.fresh:
            self._cooled = self._clock()
        self.due, self.fresh = "", False

    def _look_at_limits(self) -> None:
        found = self._limits()
        for before, after, spell in zip(
            self._held_to, found, (_format_processors, _format_memory), strict=True
        ):
            if abs(after - before) > NOISE * min(before, after):
                self.due = f"its limit changed from {spell(before)} to {spell(after)}"
                self._held_to = found

    def _look_at_heat(self, now: float) -> None:
        """Trigger when throttling starts or stops."""
        before, self._last = self._last, self._heat()
        hot = has_throttled(before, self._last)
        if hot != self._hot and now - self._cooled >= REST:
            self._hot, self.fresh = hot, True
            self.due = (
                "the processor is throttled" if hot else "the processor is no longer throttled"
            )


def _format_processors(count: float) -> str:
    return f"{count:g} processors"


def _format_memory(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if size < math.inf else "no memory limit"
