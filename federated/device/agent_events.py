"""The events that an agent reacts to: frozen records of names, digests and plain values, never
tensors. Clocks, disks and measurements are read before an event is made.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from federated.task import Profile, Task
from federated.wire.messages import Condition, Run, Status

__all__ = [
    "AgentEvent",
    "AnnouncementLost",
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


class Event(Struct, frozen=True, tag=True):
    """Base of all events. now: when the agent learned of the event, in its own seconds."""

    now: float


class Started(Event, frozen=True, tag=True):
    """The agent has subscribed to its topics."""


class Stopped(Event, frozen=True, tag=True):
    """The agent must leave, because its run is over or it was stopped."""


class AnnouncementLost(Event, frozen=True, tag=True):
    """The coordinator did not get this agent's profile or status, or could not read it."""


class LinkLost(Event, frozen=True, tag=True):
    """The link to the broker went down."""


class LinkBack(Event, frozen=True, tag=True):
    """The link is up again. The broker may have restarted and forgotten everything."""


class CardCame(Event, frozen=True, tag=True):
    """The card of a run arrived."""

    card: Run


class Dismissed(Event, frozen=True, tag=True):
    """The agent's part in the run has ended. refused: the coordinator rejected the agent; otherwise
    the run is over.
    """

    reason: str
    refused: bool = False


class StatusHeard(Event, frozen=True, tag=True):
    """A status of this agent's name arrived. retained: the broker had retained it."""

    status: Status
    retained: bool


class TaskCame(Event, frozen=True, tag=True):
    """A task arrived, for the first time or again."""

    task: Task


class TasksAborted(Event, frozen=True, tag=True):
    """The coordinator aborted the tasks up to this round and attempt."""

    round: int
    attempt: int
    reason: str


class WeightsCame(Event, frozen=True, tag=True):
    """The weights with this digest are complete and on disk, and the graphs of their task."""

    digest: str


class WeightsFailed(Event, frozen=True, tag=True):
    """The disk has no room for the weights with this digest.

    where: the folder, and the system's error.
    spare: whether other weights there can be removed.
    """

    digest: str
    where: str
    spare: bool


class TrainingEnded(Event, frozen=True, tag=True):
    """The task runner finished a task.

    loss: of the work; NaN if there is none.
    failure: why there is no update; None if it is in the spool.
    full: whether a full disk is the reason.
    """

    task: Task
    loss: float
    failure: str | None = None
    full: bool = False


class SpoolOverfull(Event, frozen=True, tag=True):
    """The spool is over its limit, and holds no weights that could be downloaded again."""


class UploadStalled(Event, frozen=True, tag=True):
    """The upload of a task's update makes no progress, or the coordinator has not answered its
    offer.
    """

    task: Task


class UpdateAnswered(Event, frozen=True, tag=True):
    """The coordinator accepted the update of this transfer, or refused it with a reason."""

    transfer: str
    accepted: bool
    reason: str


class ProfileMeasured(Event, frozen=True, tag=True):
    """The device measured itself again."""

    profile: Profile


class PauseSeen(Event, frozen=True, tag=True):
    """The agent checked whether it may work. paused: why not; empty if it may."""

    paused: str


class Ticked(Event, frozen=True, tag=True):
    """Time passed, and all messages that had arrived are handled.

    chunks: number received of the weights being downloaded.
    steps: taken and planned by the task runner.
    condition: of the device.
    """

    chunks: int = 0
    steps: tuple[int, int] = (0, 0)
    condition: Condition = Condition()


AgentEvent: TypeAlias = (
    AnnouncementLost
    | CardCame
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
