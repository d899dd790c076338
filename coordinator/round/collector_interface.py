"""Define the interface of the code that checks and sums the updates of a phase, with defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.observe.round_records import Folded
from coordinator.round.task_state import Planned, TaskState
from coordinator.round.tensor_check import Examined, TensorCheck
from federated.task import Task, Update
from federated.wire.codecs.codec import Tensors

__all__ = ["Collector", "Snapshot", "limit_size"]

HEADER = 65_536  # bytes allowed for an update's header, without the classes that its device holds
LABEL = 5  # bytes of a class in the header, at most


@dataclass(frozen=True)
class Snapshot:
    """A total that was written to disk.

    name: of its file.
    folded: the updates in it.
    digest: sha256 of the file.
    """

    name: str
    folded: tuple[Folded, ...]
    digest: str


def limit_size(task: Task) -> int:
    """Return the maximum size of the task's update in bytes, compressed or not. No device sends
    more tensors than it received, and no codec enlarges them. With a vocabulary as classes, their
    list may be longer than the rest of the header.
    """
    labels = task.submodel.network.outputs if task.recipe.labels else 0
    return task.decoded_size + HEADER + LABEL * labels


class Collector(Protocol):
    """Checks and sums the updates of a phase: by default of one without spares and snapshots."""

    def limit(self, task: Task) -> int:
        """Return the maximum size of an encoded update, in bytes."""
        return limit_size(task)

    def received(self, task: Task) -> Tensors:
        """Return the weights that the agent received, by local name."""
        raise AssertionError("updates of this phase are not encoded")

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        """Raise Refused for an update that must not be folded.

        elapsed: seconds since the task was sent; infinite if an earlier process sent it.
        """

    def describe_check(self, task: Task) -> TensorCheck | None:
        """Return what another process needs to check the tensors of the task's update; None if only
        `check` can.
        """
        return None

    def accept(self, task: Task, examined: Examined, elapsed: float) -> None:
        """Do as `check` does for an update whose tensors passed their checks in another process."""
        raise AssertionError("other processes check no updates of this phase")

    def fold(self, state: TaskState, update: Update) -> None:
        """Add an update to the total."""

    def settle(self) -> None:
        """Add the updates that were folded to the total: no further one follows at once."""
        return

    def prepare(self, agent: str) -> Planned:
        """Return the task of a spare, after recording that it is asked."""
        raise AssertionError("this phase has no spares")

    def snapshot(self) -> Snapshot | None:
        """Write the total to disk; None if it has no such form. Raises StoreError."""
        return None
