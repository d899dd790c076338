"""Measure a training task on this device: seconds, step time and peak memory. Does not import
torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_agent.device.process_memory import SELF, read_memory, reset_peak
from federated.device.trainers.trainer import Accelerator

__all__ = ["TaskGauge"]


class TaskGauge:
    """Measure the tasks of one process, one at a time: call `begin`, then `before_step` and
    `after_step` around each step, then `notes`.

    accelerator: the trainer's, if it has memory of its own. clock: returns seconds. process: the
    process's folder in /proc.
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        clock: Callable[[], float] = time.perf_counter,
        process: Path = SELF,
    ) -> None:
        self.accelerator, self.clock, self.process = accelerator, clock, process
        self._base = sys.maxsize  # bytes of the process without a task: the least at any task start
        self._earlier_peak = 0  # bytes, up to the start of the task
        self._start = self._step_start = 0.0
        self._steps: list[float] = []

    def begin(self) -> None:
        """Start the measurement of a task."""
        self._steps, self._start = [], self.clock()
        if self.accelerator is not None:
            self.accelerator.reset_peak()
            self._base = self._earlier_peak = 0
            return
        reset_peak(self.process)
        resident, self._earlier_peak = read_memory(self.process)
        self._base = min(self._base, resident)

    def before_step(self) -> bool:
        """Start the measurement of a step. Always returns False, so that it can end a `stop`
        condition.
        """
        self._step_start = self.clock()
        return False

    def after_step(self, step: int, steps: int, loss: float) -> None:
        """End the measurement of a step."""
        self._steps.append(self.clock() - self._step_start)

    def notes(self) -> dict[str, Any]:
        """Return the measurements of the task; a missing one is omitted.

        seconds: since `begin`. step: mean seconds per step; without the first, which warms up, if
        there are others. peak: bytes beyond the process without a task.
        """
        notes: dict[str, Any] = {"seconds": self.clock() - self._start}
        if self._steps:
            counted = self._steps[1:] or self._steps
            notes["step"] = sum(counted) / len(counted)
        if (peak := self._peak()) > 0:
            notes["peak"] = peak
        return notes

    def _peak(self) -> int:
        """Return the peak in bytes; 0 if an earlier peak was higher and could not be reset."""
        if self.accelerator is not None:
            return self.accelerator.peak()
        _, peak = read_memory(self.process)
        return peak - self._base if peak > self._earlier_peak else 0
