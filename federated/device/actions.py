"""What an agent asks its driver to do: frozen records."""

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
    """Have the broker say whose status it keeps under this agent's name; `StatusHeard` follows."""


class Fetch(Struct, frozen=True):
    """Fetch the weights of a task, and no others, unless they are here; `WeightsCame` or
    `WeightsFailed` follows.
    """

    task: Task


class StopFetching(Struct, frozen=True):
    """Stop fetching weights."""


class FreeSpace(Struct, frozen=True):
    """Remove all weights from the spool."""


class Train(Struct, frozen=True):
    """Hand a task, whose weights are here, to the task runner; `TrainingEnded` follows."""

    task: Task


class StopTraining(Struct, frozen=True):
    """Stop the task runner."""


class Offer(Struct, frozen=True):
    """Offer the update of a task, and send it as the coordinator allows. anew: forget what was sent
    of it before.
    """

    task: Task
    anew: bool


class Forget(Struct, frozen=True):
    """Remove the update of a task from the spool."""

    task: Task


class Trim(Struct, frozen=True):
    """Remove old weights, but not those of this digest, while the spool is over its limit; if that
    is not enough, `SpoolOverfull` follows.
    """

    digest: str


class Measure(Struct, frozen=True):
    """Measure the device for the present card; `ProfileMeasured` follows."""


class Look(Struct, frozen=True):
    """Look whether the device may work; `PauseSeen` follows."""


class Erase(Struct, frozen=True):
    """Remove everything of this run from the spool, and the agent's retained messages from the
    broker.
    """


class Log(Struct, frozen=True):
    """Write a line to the log. about: the task that it is about; event: what happened to it, in a
    word or two.
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
