"""What a phase makes of its updates: the arithmetic beside the round's decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.observe.records import Folded
from coordinator.round.task_state import Planned, TaskState
from federated.task import Task, Update

__all__ = ["Collector", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """A total that was written. name: of its file; folded: what is in it."""

    name: str
    folded: tuple[Folded, ...]


class Collector(Protocol):
    """What a phase makes of its updates."""

    def limit(self, task: Task) -> int:
        """Largest acceptable encoding of an update, bytes."""

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        """Raises Refused for an update that must not be folded.

        elapsed: seconds since the task was sent; infinite where an earlier process sent it.
        """

    def fold(self, state: TaskState, update: Update) -> None:
        """Adds an update to the total."""

    def prepare(self, agent: str) -> Planned:
        """The task of a spare, recorded before the agent hears of it."""

    def snapshot(self) -> Snapshot | None:
        """Writes the total down; None where it cannot be written as one. Raises StoreError."""
