"""What can happen to an agent: frozen records, each with the time at which it learned of it (`now`,
in the agent's own seconds).

Events hold names, digests and plain values, never tensors. Whatever needs a clock, a disk or a
measurement was done before the event was made.
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
    """The agent listens to its topics."""

    now: float


class Stopped(Struct, frozen=True, tag=True):
    """The agent is to leave: its run is over, or somebody stopped it."""

    now: float


class LinkLost(Struct, frozen=True, tag=True):
    """The link to the broker went down."""

    now: float


class LinkBack(Struct, frozen=True, tag=True):
    """The link is up again. The broker may have restarted and forgotten everything."""

    now: float


class CardCame(Struct, frozen=True, tag=True):
    """The card of a run came."""

    now: float
    card: Run


class Dismissed(Struct, frozen=True, tag=True):
    """The coordinator wants nothing more of this agent. refused: it was turned away; else the run
    is over.
    """

    now: float
    reason: str
    refused: bool = False


class StatusHeard(Struct, frozen=True, tag=True):
    """A status of this agent's name. retained: the broker kept it."""

    now: float
    status: Status
    retained: bool


class TaskCame(Struct, frozen=True, tag=True):
    """The coordinator asks for a task, for the first time or again."""

    now: float
    task: Task


class TasksAborted(Struct, frozen=True, tag=True):
    """The coordinator no longer wants tasks up to this round and attempt."""

    now: float
    round: int
    attempt: int
    reason: str


class WeightsCame(Struct, frozen=True, tag=True):
    """Weights of this digest are whole and on disk."""

    now: float
    digest: str


class WeightsFailed(Struct, frozen=True, tag=True):
    """The disk has no room for weights of this digest. where: the folder, and what the system said.
    spare: whether other weights there can go.
    """

    now: float
    digest: str
    where: str
    spare: bool


class TrainingEnded(Struct, frozen=True, tag=True):
    """The task runner is done with a task.

    now: the time, in the agent's seconds.
    task: the task.
    loss: of the work; NaN where there is none.
    failure: why there is no update; None where it is in the spool.
    full: whether that is because the disk is full.
    """

    now: float
    task: Task
    loss: float
    failure: str | None = None
    full: bool = False


class SpoolOverfull(Struct, frozen=True, tag=True):
    """The spool is over its limit, and nothing is left in it that could be fetched again."""

    now: float


class UploadStalled(Struct, frozen=True, tag=True):
    """The upload of a task's update makes no progress, or the coordinator does not answer its
    offer.
    """

    now: float
    task: Task


class UpdateAnswered(Struct, frozen=True, tag=True):
    """The coordinator accepted the update of this transfer, or refused it and said why."""

    now: float
    transfer: str
    accepted: bool
    reason: str


class ProfileMeasured(Struct, frozen=True, tag=True):
    """The device measured itself again."""

    now: float
    profile: Profile


class PauseSeen(Struct, frozen=True, tag=True):
    """The agent looked whether it may work. paused: why not; empty where it may."""

    now: float
    paused: str


class Ticked(Struct, frozen=True, tag=True):
    """Everything that came was heard. chunks: received of the weights on their way. steps: taken
    and planned by the task runner.
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
