"""Events of a round: frozen records with the time when each happened (`now`, in the coordinator's
seconds).

Events hold names, digests and plain values, never tensors. The results of clocks, disks, checks and
random draws are part of the event.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from coordinator.round.plan import RoundPlan
from coordinator.round.round import Rules
from coordinator.round.task_state import Planned, Spare
from federated.task import Key, Profile, Work
from federated.wire.messages import Offer

__all__ = [
    "AgentBeat",
    "AgentConnected",
    "AgentLeft",
    "AgentsBarred",
    "CardChanged",
    "ChunkCame",
    "PhaseBegan",
    "ProfileCame",
    "Resumed",
    "RoundEvent",
    "RoundPlanned",
    "RoundStored",
    "SnapshotTaken",
    "SpoolFilled",
    "TaskAdded",
    "TaskFailed",
    "TasksDropped",
    "Ticked",
    "UpdateCame",
    "UpdateFolded",
    "UpdateLost",
    "UpdateOffered",
    "UpdateRefused",
]


class AgentConnected(Struct, frozen=True, tag=True):
    """An agent announced itself. paused: why it takes no task; empty if it does."""

    now: float
    agent: str
    session: str
    paused: str = ""


class AgentLeft(Struct, frozen=True, tag=True):
    """An agent signed off, or the broker published its last will."""

    now: float
    agent: str
    session: str
    why: str


class ProfileCame(Struct, frozen=True, tag=True):
    """An agent sent its measurements of itself.

    refused: why it cannot take part; empty if it can.
    excluded: why this run does not select it; empty if it does.
    """

    now: float
    agent: str
    profile: Profile
    refused: str = ""
    excluded: str = ""


class AgentBeat(Struct, frozen=True, tag=True):
    """An agent sent a heartbeat.

    state: what it does (see `Agent`).
    loss: of its training.
    step: number of finished steps.
    round, work: of its current task; 0 and empty without one.
    """

    now: float
    agent: str
    session: str
    state: str
    loss: float
    step: int
    round: int = 0
    work: str = ""


class AgentsBarred(Struct, frozen=True, tag=True):
    """The set of agents with revoked certificates changed."""

    now: float
    agents: frozenset[str]
    reason: str


class CardChanged(Struct, frozen=True, tag=True):
    """The run's card changed, so every agent measures itself again."""

    now: float


class RoundPlanned(Struct, frozen=True, tag=True):
    """The next round was planned."""

    now: float
    plan: RoundPlan


class PhaseBegan(Struct, frozen=True, tag=True):
    """A phase begins.

    work, round, limit, quorum, wanted, spares, flowing, carries, timed: see `Phase`.
    tasks: the tasks to send.
    """

    now: float
    work: Work
    round: int
    tasks: tuple[Planned, ...]
    limit: float
    quorum: int
    wanted: int = 0
    spares: tuple[Spare, ...] = ()
    flowing: bool = False
    carries: bool = False
    timed: bool = True


class TaskAdded(Struct, frozen=True, tag=True):
    """The task of a spare was made and recorded."""

    now: float
    planned: Planned


class UpdateOffered(Struct, frozen=True, tag=True):
    """An agent offers an update."""

    now: float
    agent: str
    offer: Offer


class ChunkCame(Struct, frozen=True, tag=True):
    """A chunk of an update was stored."""

    now: float
    key: Key


class UpdateCame(Struct, frozen=True, tag=True):
    """A complete update is on disk and passed its checks.

    transfer: name of its transfer, repeated in the answer.
    digest: its sha256.
    loss: of its training; NaN for other work.
    """

    now: float
    key: Key
    attempt: int
    transfer: str
    digest: str
    loss: float


class UpdateLost(Struct, frozen=True, tag=True):
    """An accepted update is missing or damaged in the spool, so it is requested again."""

    now: float
    key: Key


class UpdateRefused(Struct, frozen=True, tag=True):
    """An update was refused. kind: size or update."""

    now: float
    key: Key
    attempt: int
    transfer: str
    reason: str
    kind: str = "update"


class TaskFailed(Struct, frozen=True, tag=True):
    """An agent could not do its task. paused: the device may not work now, or has no room; a later
    task may succeed.
    """

    now: float
    key: Key
    attempt: int
    reason: str
    paused: bool = False


class UpdateFolded(Struct, frozen=True, tag=True):
    """An update was added to the total."""

    now: float
    key: Key


class SnapshotTaken(Struct, frozen=True, tag=True):
    """A snapshot of the total was tried.

    keys: the updates in it; empty if it failed.
    written: whether it was written.
    """

    now: float
    keys: tuple[Key, ...]
    written: bool


class RoundStored(Struct, frozen=True, tag=True):
    """The round is in the store. No journal holds this event: the next segment begins with the
    value after it.
    """

    now: float


class Resumed(Struct, frozen=True, tag=True):
    """Another process resumed the run and replayed all earlier events. rules: of its
    configuration.
    """

    now: float
    rules: Rules


class TasksDropped(Struct, frozen=True, tag=True):
    """The coordinator gave up tasks.

    keys: the tasks.
    reason: in words.
    round: whether the current round starts over.
    """

    now: float
    keys: tuple[Key, ...]
    reason: str
    round: bool


class SpoolFilled(Struct, frozen=True, tag=True):
    """An update found no room in the spool."""

    now: float


class Ticked(Struct, frozen=True, tag=True):
    """Time passed, and all messages that arrived before are handled. waiting: updates that wait for
    an upload slot or for room.
    """

    now: float
    waiting: frozenset[Key] = frozenset()


RoundEvent: TypeAlias = (
    AgentBeat
    | AgentConnected
    | AgentLeft
    | AgentsBarred
    | CardChanged
    | ChunkCame
    | PhaseBegan
    | ProfileCame
    | Resumed
    | RoundPlanned
    | RoundStored
    | SnapshotTaken
    | SpoolFilled
    | TaskAdded
    | TaskFailed
    | TasksDropped
    | Ticked
    | UpdateCame
    | UpdateFolded
    | UpdateLost
    | UpdateOffered
    | UpdateRefused
)
