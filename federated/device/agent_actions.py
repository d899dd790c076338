"""The actions of an agent, as plain data: `agent_step.step` returns them, and `AgentEventLoop`
carries them out.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from federated.task import Profile, Task
from federated.wire.messages import Failure, Heartbeat, Status

__all__ = [
    "AgentAction",
    "AskStatus",
    "Erase",
    "Fetch",
    "Forget",
    "FreeSpace",
    "Log",
    "Look",
    "Measure",
    "Offer",
    "StopFetching",
    "StopTraining",
    "Tell",
    "Train",
    "Trim",
]


class Tell(Struct, frozen=True):
    """Publish a message on its topic."""

    message: Failure | Heartbeat | Profile | Status


class AskStatus(Struct, frozen=True):
    """Request the retained status of this agent's name from the broker; `StatusHeard` follows."""


class Fetch(Struct, frozen=True):
    """Download the weights and the graphs of a task instead of any others, unless they are here.
    `WeightsCame` or `WeightsFailed` follows.
    """

    task: Task


class StopFetching(Struct, frozen=True):
    """Stop the download of weights."""


class FreeSpace(Struct, frozen=True):
    """Remove all weights from the spool."""


class Train(Struct, frozen=True):
    """Pass a task to the task runner, after its weights arrived; `TrainingEnded` follows."""

    task: Task


class StopTraining(Struct, frozen=True):
    """Stop the task runner."""


class Offer(Struct, frozen=True):
    """Offer the update of a task, and send it as the coordinator allows. restart: True if chunks
    that were sent before may be lost.
    """

    task: Task
    restart: bool


class Forget(Struct, frozen=True):
    """Remove the update of a task from the spool."""

    task: Task


class Trim(Struct, frozen=True):
    """Remove old weights, except those with this digest, until the spool is within its limit. If
    that is not enough, `SpoolOverfull` follows.
    """

    digest: str


class Measure(Struct, frozen=True):
    """Measure the device for the current card; `ProfileMeasured` follows."""


class Look(Struct, frozen=True):
    """Check whether the device may work; `PauseSeen` follows."""


class Erase(Struct, frozen=True):
    """Remove the data of this run from the spool, and the agent's retained messages from the
    broker.
    """


class Log(Struct, frozen=True):
    """Write a log record.

    text: the message.
    warn: whether it is a warning.
    about: the task that it concerns.
    event: what happened to the task, in a word or two.
    """

    text: str
    warn: bool = False
    about: Task | None = None
    event: str = ""


AgentAction: TypeAlias = (
    AskStatus
    | Erase
    | Fetch
    | Forget
    | FreeSpace
    | Log
    | Look
    | Measure
    | Offer
    | StopFetching
    | StopTraining
    | Tell
    | Train
    | Trim
)
