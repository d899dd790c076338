"""What a task really took on this device: seconds, the time of a step, and the memory at its peak;
torch-free.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from federated.device.trainers.trainer import Accelerator

__all__ = ["Gauge"]

PROCESS = Path("/proc/self")


class Gauge:
    """Measures the tasks of one process, one at a time: `begin`, the task with `timed` around its
    steps, `notes`.

    accelerator: of the trainer, if it has memory of its own. clock: seconds. process: its folder
    below /proc.
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        clock: Callable[[], float] = time.perf_counter,
        process: Path = PROCESS,
    ) -> None:
        self.accelerator, self.clock, self.process = accelerator, clock, process
        # bytes of the process itself: what it held at the leanest of its tasks' starts
        self._base = sys.maxsize
        self._before = 0  # its peak until then
        self._begun = self._step = 0.0
        self._steps: list[float] = []

    def begin(self) -> None:
        """A task starts now."""
        self._steps, self._begun = [], self.clock()
        if self.accelerator is not None:
            self.accelerator.reset_peak()
            self._base = self._before = 0
            return
        with contextlib.suppress(OSError):
            (self.process / "clear_refs").write_text("5")  # the peak is what it is now (proc(5))
        self._base, self._before = min(self._base, self._read("VmRSS")), self._read("VmHWM")

    def before(self) -> bool:
        """A step may start now; always False, as the last word on whether to stop."""
        self._step = self.clock()
        return False

    def after(self, step: int, steps: int, loss: float) -> None:
        """It is done."""
        self._steps.append(self.clock() - self._step)

    def notes(self) -> dict[str, Any]:
        """seconds: since `begin`. step: mean of the steps, the first left out where there are
        others, since it warms up. peak: bytes beyond the process itself. What there is no number
        for is left out.
        """
        made: dict[str, Any] = {"seconds": self.clock() - self._begun}
        if self._steps:
            counted = self._steps[1:] or self._steps
            made["step"] = sum(counted) / len(counted)
        if (peak := self._peak()) > 0:
            made["peak"] = peak
        return made

    def _peak(self) -> int:
        """0 where an earlier peak that cannot be forgotten was higher."""
        if self.accelerator is not None:
            return self.accelerator.peak()
        peak = self._read("VmHWM")
        return peak - self._base if peak > self._before else 0

    def _read(self, field: str) -> int:
        """Bytes of one line of the process's status; 0 where there is none."""
        try:
            lines = (self.process / "status").read_text().splitlines()
        except OSError:
            return 0
        return next(
            (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0
        )
