"""The events of an agent: frozen records.

now: when the agent learned of the event, in its own seconds. Events hold names, digests and plain
values, never tensors. Clocks, disks and measurements are read before an event is made.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from federated.task import Profile, Task
from federated.wire.messages import Run, Status

__all__ = [
    "AgentEvent",
    "CardCame",
    "Dismissed",
    "LinkBack",
    "LinkLost",
    "PauseSeen",
    "ProfileMeasured",
    "SpoolOverfull",
    "Started",
    "StatusHeard",
    "Stopped",
    "TaskCame",
    "TasksAborted",
    "Ticked",
    "TrainingEnded",
    "UpdateAnswered",
    "UploadStalled",
    "WeightsCame",
    "WeightsFailed",
]


class Started(Struct, frozen=True, tag=True):
    """The agent has subscribed to its topics."""

    now: float


class Stopped(Struct, frozen=True, tag=True):
    """The agent must leave, because its run is over or it was stopped."""

    now: float


class LinkLost(Struct, frozen=True, tag=True):
    """The link to the broker went down."""

    now: float


class LinkBack(Struct, frozen=True, tag=True):
    """The link is up again. The broker may have restarted and forgotten everything."""

    now: float


class CardCame(Struct, frozen=True, tag=True):
    """The card of a run arrived."""

    now: float
    card: Run


class Dismissed(Struct, frozen=True, tag=True):
    """The agent's part in the run has ended. refused: the coordinator rejected the agent; otherwise
    the run is over.
    """

    now: float
    reason: str
    refused: bool = False


class StatusHeard(Struct, frozen=True, tag=True):
    """A status of this agent's name arrived. retained: the broker had retained it."""

    now: float
    status: Status
    retained: bool


class TaskCame(Struct, frozen=True, tag=True):
    """A task arrived, for the first time or again."""

    now: float
    task: Task


class TasksAborted(Struct, frozen=True, tag=True):
    """The coordinator aborted the tasks up to this round and attempt."""

    now: float
    round: int
    attempt: int
    reason: str


class WeightsCame(Struct, frozen=True, tag=True):
    """The weights with this digest are complete and on disk."""

    now: float
    digest: str


class WeightsFailed(Struct, frozen=True, tag=True):
    """The disk has no room for the weights with this digest.

    where: the folder, and the system's error.
    spare: whether other weights there can be removed.
    """

    now: float
    digest: str
    where: str
    spare: bool


class TrainingEnded(Struct, frozen=True, tag=True):
    """The task runner finished a task.

    loss: of the work; NaN if there is none.
    failure: why there is no update; None if it is in the spool.
    full: whether a full disk is the reason.
    """

    now: float
    task: Task
    loss: float
    failure: str | None = None
    full: bool = False


class SpoolOverfull(Struct, frozen=True, tag=True):
    """The spool is over its limit, and holds no weights that could be downloaded again."""

    now: float


class UploadStalled(Struct, frozen=True, tag=True):
    """The upload of a task's update makes no progress, or the coordinator has not answered its
    offer.
    """

    now: float
    task: Task


class UpdateAnswered(Struct, frozen=True, tag=True):
    """The coordinator accepted the update of this transfer, or refused it with a reason."""

    now: float
    transfer: str
    accepted: bool
    reason: str


class ProfileMeasured(Struct, frozen=True, tag=True):
    """The device measured itself again."""

    now: float
    profile: Profile


class PauseSeen(Struct, frozen=True, tag=True):
    """The agent checked whether it may work. paused: why not; empty if it may."""

    now: float
    paused: str


class Ticked(Struct, frozen=True, tag=True):
    """Time passed, and all messages that had arrived are handled.

    chunks: number received of the weights being downloaded.
    steps: taken and planned by the task runner.
    """

    now: float
    chunks: int = 0
    steps: tuple[int, int] = (0, 0)


AgentEvent: TypeAlias = (
    CardCame
    | Dismissed
    | LinkBack
    | LinkLost
    | PauseSeen
    | ProfileMeasured
    | SpoolOverfull
    | Started
    | StatusHeard
    | Stopped
    | TaskCame
    | TasksAborted
    | Ticked
    | TrainingEnded
    | UpdateAnswered
    | UploadStalled
    | WeightsCame
    | WeightsFailed
)
