"""The interface through which an agent's event loop runs tasks in the background. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federated.task import Task

__all__ = ["Outcome", "TaskRunner"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task.

    task: the task.
    path: file of its encoded update; None if there is none.
    reason: why there is none.
    loss: of the work; NaN if there is none.
    full: whether the reason is a full disk, so that another attempt may succeed.
    """

    task: Task
    path: Path | None
    reason: str = ""
    loss: float = float("nan")
    full: bool = False


class TaskRunner(Protocol):
    """Runs tasks in the background, one at a time.

    progress: steps taken and planned in the current task, as far as known.
    """

    progress: tuple[int, int]

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        """Start a task with the encoded weights in `weights`, and write the encoded update to
        `result`.
        """

    def poll(self) -> Outcome | None:
        """Return the outcome of the task once it has ended, without waiting."""

    def cancel(self) -> None:
        """Cancel the current task; `poll` then returns no outcome of it."""
