"""Define the events that a run reports, such as a finished round: frozen records that are published
once, to every reader (terminal, log, metrics).

A reader is a function that takes an event. The run does not depend on its readers. The events that
drive a round are defined in `coordinator.round.round_events`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coordinator.observe.round_records import Entry, RoundRecord
from models.submodel import Submodel

__all__ = [
    "AgentJoined",
    "AgentLeft",
    "AgentRefused",
    "AgentsAwaited",
    "Event",
    "FleetChanged",
    "LeaseExpired",
    "LinkChanged",
    "LoopTurned",
    "PrivacySpent",
    "Publish",
    "Rejected",
    "RoundDelayed",
    "RoundEnded",
    "RoundStarted",
    "RunEnded",
    "RunPaused",
    "StageFinished",
    "TaskFailed",
    "UpdateFolded",
    "publish_to",
    "skip_repeats",
    "time_stage",
]

# ---- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentsAwaited:
    """The next round waits because too few agents are ready. Published at every check while that
    lasts.

    ready: number of agents that are ready.
    wanted: number of agents that the run needs.
    """

    ready: int
    wanted: int


@dataclass(frozen=True)
class RunPaused:
    """The next round waits because the run is paused. Published at every check while that lasts."""


@dataclass(frozen=True)
class RoundDelayed:
    """The next round waits for a reason other than a pause or missing agents. Published at every
    check while that lasts.

    why: the reason, in words.
    """

    why: str


@dataclass(frozen=True)
class RoundStarted:
    """A round started or resumed.

    round: its number, from 1.
    rounds: number of rounds of the run.
    chosen: agent -> the submodel that it trains.
    """

    round: int
    rounds: int
    chosen: Mapping[str, Submodel]


@dataclass(frozen=True)
class UpdateFolded:
    """An update was added to the round's sum.

    entry: its record.
    """

    entry: Entry


@dataclass(frozen=True)
class StageFinished:
    """The coordinator finished a computation.

    stage: fold, snapshot, finish, evaluate or save.
    seconds: its duration.
    processor: seconds of processor time of its thread.
    """

    stage: str
    seconds: float
    processor: float = 0.0


@dataclass(frozen=True)
class PrivacySpent:
    """A private run spent privacy budget.

    epsilon: of all rounds so far, at the configured delta.
    """

    epsilon: float


@dataclass(frozen=True)
class RoundEnded:
    """A round was stored.

    done: its stored record, which includes the tensors of the model: before you write it as text,
        select fields or use `coordinator.observe.event_readers.reader.round_scalars`.
    """

    done: RoundRecord


@dataclass(frozen=True)
class RunEnded:
    """The coordinator ends. This is the last event.

    phase: over (the run is complete), stopped (it can resume) or failed.
    reason: in words.
    """

    phase: Literal["over", "stopped", "failed"]
    reason: str


@dataclass(frozen=True)
class LinkChanged:
    """The connection to the broker, or to the store of the transfers, is lost or restored. The run
    waits meanwhile.

    lost: why there is none, in words; empty: it is restored.
    to: where it leads.
    """

    lost: str
    to: Literal["broker", "store"] = "broker"


# ---- the fleet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoopTurned:
    """The coordinator's loop turned, as it does all the time; published about twice a second."""


@dataclass(frozen=True)
class FleetChanged:
    """A message of an agent was handled, or a phase ended, so the state of the fleet may have
    changed.

    agent: name of the agent; empty at the end of a phase.
    """

    agent: str = ""


@dataclass(frozen=True)
class AgentJoined:
    """An agent joined or returned.

    agent: its name.
    restarted: whether it runs in a new process.
    """

    agent: str
    restarted: bool


@dataclass(frozen=True)
class AgentLeft:
    """An agent left, fell silent or was revoked.

    agent: its name.
    reason: in words that follow the name.
    """

    agent: str
    reason: str


@dataclass(frozen=True)
class AgentRefused:
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
    seconds: since it got the task.
    """

    agent: str
    seconds: float


@dataclass(frozen=True)
class TaskFailed:
    """An agent reports that it cannot do its task.

    agent: its name.
    submodel: of the task.
    outcome: `failed` or `paused`, a colon, and the agent's reason.
    """

    agent: str
    submodel: str
    outcome: str


@dataclass(frozen=True)
class Rejected:
    """A message or an update was rejected.

    kind: protocol, malformed, message, unasked, size, update, flood, or answered (a second update
        for a task).
    source: the agent, or the topic of a message without an agent.
    reason: in words.
    agent: the agent's name; None if the topic has none.
    transfer: of the update; empty for other messages.
    topic: of the message; empty for an update.
    """

    kind: str
    source: str
    reason: str
    agent: str | None = None
    transfer: str = ""
    topic: str = ""


Event: TypeAlias = (
    AgentJoined
    | AgentRefused
    | AgentLeft
    | AgentsAwaited
    | FleetChanged
    | LeaseExpired
    | LinkChanged
    | PrivacySpent
    | Rejected
    | RoundStarted
    | RoundEnded
    | RunEnded
    | RoundDelayed
    | RunPaused
    | StageFinished
    | TaskFailed
    | LoopTurned
    | UpdateFolded
)
Publish: TypeAlias = Callable[[Event], None]
"""A function that takes an event: one reader, or all readers of a run."""


def publish_to(*readers: Publish) -> Publish:
    """Return a function that passes an event to each reader, in this order."""

    def publish(event: Event) -> None:
        for read in readers:
            read(event)

    return publish


def skip_repeats(read: Publish) -> Publish:
    """Return a reader that passes each reason why no round starts once until the next round."""
    last: dict[type[Event], Event] = {}

    def publish(event: Event) -> None:
        if isinstance(event, RoundStarted):
            last.clear()
        elif isinstance(event, RoundDelayed | RunPaused):
            if last.get(type(event)) == event:
                return
            last[type(event)] = event
        read(event)

    return publish


@contextmanager
def time_stage(publish: Publish, stage: str) -> Iterator[None]:
    """Publish the duration of the block."""
    start, before = time.perf_counter(), time.thread_time()
    yield
    seconds, processor = time.perf_counter() - start, time.thread_time() - before
    publish(StageFinished(stage, seconds, processor))
