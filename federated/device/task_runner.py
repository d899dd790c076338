"""Runs tasks in the background, as the driver of an agent sees it; torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federated.task import Task

__all__ = ["Outcome", "TaskRunner"]


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    task: the task.
    path: the file of its encoded update; None where there is none.
    reason: why there is none.
    loss: of the work; NaN where there is none.
    full: whether the reason is a full disk, so that another try may succeed.
    """

    task: Task
    path: Path | None
    reason: str = ""
    loss: float = float("nan")
    full: bool = False


class TaskRunner(Protocol):
    """Does tasks in the background, one at a time.

    progress: steps taken and planned in the present task, as far as known.
    """

    progress: tuple[int, int]

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        """Starts a task whose encoded weights are in `weights`; writes the encoded update to
        `result`.
        """

    def poll(self) -> Outcome | None:
        """The outcome, once there is one; never waits."""

    def cancel(self) -> None:
        """Gives up the present task; `poll` then has nothing of it."""
