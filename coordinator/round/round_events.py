"""What can happen to a round: frozen records, each with the time at which the coordinator learned
of it (`now`, in its own seconds).

Events hold names, digests and plain values, never tensors. Whatever needs a clock, a disk, a check
or a draw was done before the event was made.
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
    """An agent says that it is there. paused: why it takes no task, empty where it does."""

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
    """An agent says what it measured. refused, excluded: why it cannot take part, and why this run
    does not select it.
    """

    now: float
    agent: str
    profile: Profile
    refused: str = ""
    excluded: str = ""


class AgentBeat(Struct, frozen=True, tag=True):
    """A heartbeat: what the agent does, its loss, and how many steps are done. round, work: of the
    task that it works on; 0 and empty without one.
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
    """All agents whose certificates are revoked now."""

    now: float
    agents: frozenset[str]
    reason: str


class CardChanged(Struct, frozen=True, tag=True):
    """The run's card says more than before, so every agent measures itself anew."""

    now: float


class RoundPlanned(Struct, frozen=True, tag=True):
    """It was decided who trains what in the next round."""

    now: float
    plan: RoundPlan


class PhaseBegan(Struct, frozen=True, tag=True):
    """A phase begins.

    work, round, limit, quorum, wanted, spares, flowing, carries, timed: see `Phase`.
    tasks: to be sent.
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
    """An update is whole, on disk and checked.

    transfer: its name, which the answer has. digest: its sha256. loss: of its training; NaN for
    other work.
    """

    now: float
    key: Key
    attempt: int
    transfer: str
    digest: str
    loss: float


class UpdateLost(Struct, frozen=True, tag=True):
    """An update that was accepted is gone or damaged in the spool, so it is asked for again."""

    now: float
    key: Key


class UpdateRefused(Struct, frozen=True, tag=True):
    """An update cannot be taken. kind: size or update."""

    now: float
    key: Key
    attempt: int
    transfer: str
    reason: str
    kind: str = "update"


class TaskFailed(Struct, frozen=True, tag=True):
    """An agent says that it cannot do its task. paused: the device may not work now, or has no
    room; another try may succeed.
    """

    now: float
    key: Key
    attempt: int
    reason: str
    paused: bool = False


class UpdateFolded(Struct, frozen=True, tag=True):
    """An update is in the total."""

    now: float
    key: Key


class SnapshotTaken(Struct, frozen=True, tag=True):
    """A snapshot of the total holds these updates. `written` is False, and there are no keys, where
    none was written.
    """

    now: float
    keys: tuple[Key, ...]
    written: bool


class RoundStored(Struct, frozen=True, tag=True):
    """The round is in the store. It is in no journal: the next one begins with the value that
    follows from it.
    """

    now: float


class Resumed(Struct, frozen=True, tag=True):
    """Another process goes on, after all events before this one were replayed. rules: as its
    configuration has them.
    """

    now: float
    rules: Rules


class TasksDropped(Struct, frozen=True, tag=True):
    """Tasks are given up by the coordinator. reason: in words. round: the round under way begins
    anew.
    """

    now: float
    keys: tuple[Key, ...]
    reason: str
    round: bool


class SpoolFilled(Struct, frozen=True, tag=True):
    """An update found no room in the spool."""

    now: float


class Ticked(Struct, frozen=True, tag=True):
    """Time passed, and everything that was sent was heard. waiting: updates in line for an upload
    slot, or for room.
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
