"""The events of a run: one frozen record for each thing that happens, published once, to every
reader.

A reader is a function of an event. Nothing in a run depends on what a reader does with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coordinator.observe.records import Entry, RoundRecord
from models.submodel import Submodel

__all__ = [
    "AgentCame",
    "AgentTurnedAway",
    "AgentWent",
    "AgentsAwaited",
    "Event",
    "FleetChanged",
    "LeaseExpired",
    "PrivacySpent",
    "Publish",
    "Rejected",
    "RoundBegan",
    "RoundDelayed",
    "RoundEnded",
    "RunEnded",
    "RunPaused",
    "StageTook",
    "TaskFailed",
    "Turned",
    "UpdateFolded",
    "publish_to",
    "timing",
]

# ---- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentsAwaited:
    """No round can begin, because too few agents are ready.

    ready: agents that are ready now.
    wanted: agents that the run needs.
    """

    ready: int
    wanted: int


@dataclass(frozen=True)
class RunPaused:
    """No round begins, because somebody paused the run; published at each look while that lasts."""


@dataclass(frozen=True)
class RoundDelayed:
    """No round begins for a while, though nobody paused the run; published at each look while that
    lasts.

    why: in words.
    """

    why: str


@dataclass(frozen=True)
class RoundBegan:
    """A round began, or was resumed.

    round: its number, from 1.
    rounds: rounds that the run is to have.
    chosen: agent -> the submodel that it was asked to train.
    """

    round: int
    rounds: int
    chosen: Mapping[str, Submodel]


@dataclass(frozen=True)
class UpdateFolded:
    """An update is part of the round's total.

    entry: what is recorded of it.
    """

    entry: Entry


@dataclass(frozen=True)
class StageTook:
    """The coordinator finished a computation.

    stage: fold, snapshot, finish, evaluate or save.
    seconds: that it took.
    """

    stage: str
    seconds: float


@dataclass(frozen=True)
class PrivacySpent:
    """What a private run has told so far.

    epsilon: at the configured delta, of all rounds, those before a resume included.
    """

    epsilon: float


@dataclass(frozen=True)
class RoundEnded:
    """A round was stored.

    done: all that is stored of it.
    """

    done: RoundRecord


@dataclass(frozen=True)
class RunEnded:
    """The coordinator ends; the last event.

    phase: over (all rounds are done), stopped (it can be resumed) or failed.
    reason: in words.
    """

    phase: Literal["over", "stopped", "failed"]
    reason: str


# ---- the fleet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turned:
    """The coordinator's loop came round: several times a second, also where nothing happens."""


@dataclass(frozen=True)
class FleetChanged:
    """A message of an agent was handled, so what the fleet shows may have changed."""


@dataclass(frozen=True)
class AgentCame:
    """An agent joined or came back.

    agent: its name.
    restarted: whether it is another process than before.
    """

    agent: str
    restarted: bool


@dataclass(frozen=True)
class AgentWent:
    """An agent left, fell silent or was revoked.

    agent: its name.
    reason: in words that follow the name.
    """

    agent: str
    reason: str


@dataclass(frozen=True)
class AgentTurnedAway:
    """An agent cannot take part in this run.

    agent: its name.
    reason: in words.
    """

    agent: str
    reason: str


@dataclass(frozen=True)
class LeaseExpired:
    """An agent showed no progress on its task, and is no longer counted toward the quorum.

    agent: its name.
    seconds: since it was asked.
    """

    agent: str
    seconds: float


@dataclass(frozen=True)
class TaskFailed:
    """An agent says that it cannot do its task.

    agent: its name.
    submodel: of the task.
    outcome: `failed` or `paused`, a colon and the agent's reason.
    """

    agent: str
    submodel: str
    outcome: str


@dataclass(frozen=True)
class Rejected:
    """A message or an update was not accepted.

    kind: protocol, malformed, message, unasked, size, update, or answered (an update of a task that
    has its answer already). source: the agent, or the topic of a message that names none.
    reason: in words.
    agent: the agent's name; None where the topic names none.
    transfer: of the update; empty for another message.
    topic: of a message that is no update; else empty.
    """

    kind: str
    source: str
    reason: str
    agent: str | None = None
    transfer: str = ""
    topic: str = ""


Event: TypeAlias = (
    AgentCame
    | AgentTurnedAway
    | AgentWent
    | AgentsAwaited
    | FleetChanged
    | LeaseExpired
    | PrivacySpent
    | Rejected
    | RoundBegan
    | RoundEnded
    | RunEnded
    | RoundDelayed
    | RunPaused
    | StageTook
    | TaskFailed
    | Turned
    | UpdateFolded
)
Publish: TypeAlias = Callable[[Event], None]
"""Takes an event: a reader, or all readers of a run."""


def publish_to(*readers: Publish) -> Publish:
    """One function that hands an event to each reader, in this order."""

    def publish(event: Event) -> None:
        for read in readers:
            read(event)

    return publish


@contextmanager
def timing(publish: Publish, stage: str) -> Iterator[None]:
    """Publish how long the block took."""
    start = time.perf_counter()
    yield
    publish(StageTook(stage, time.perf_counter() - start))
