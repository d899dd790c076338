"""Define the events that change the state of a round: frozen records with the time when each
happened (`now`, in the coordinator's seconds).

Events hold names, digests and plain values, never tensors. The results of clocks, disks, checks and
random draws are part of the event.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from coordinator.round.round_state import RoundPlan, Rules
from coordinator.round.task_state import Planned, Spare
from federated.task import Key, Profile, Work
from federated.wire.messages import Condition, Offer

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
    "TransfersRestored",
    "UpdateCame",
    "UpdateFolded",
    "UpdateLost",
    "UpdateOffered",
    "UpdateRefused",
]


class Timed(Struct, frozen=True, tag=True):
    """An event with the time when it happened."""

    now: float


class Keyed(Timed, frozen=True):
    """An event about one task."""

    key: Key


class AgentConnected(Timed, frozen=True):
    """An agent announced itself. paused: why it takes no task; empty if it does."""

    agent: str
    session: str
    paused: str = ""


class AgentLeft(Timed, frozen=True):
    """An agent signed off, or the broker published its last will."""

    agent: str
    session: str
    why: str


class ProfileCame(Timed, frozen=True):
    """An agent sent its measurements of itself.

    refused: why it cannot take part; empty if it can.
    excluded: why this run does not select it; empty if it does.
    """

    agent: str
    profile: Profile
    refused: str = ""
    excluded: str = ""


class AgentBeat(Timed, frozen=True):
    """An agent sent a heartbeat.

    state: what it does (see `Agent`).
    loss: of its training.
    step: number of finished steps.
    round, work: of its current task; 0 and empty without one.
    condition: of its device.
    """

    agent: str
    session: str
    state: str
    loss: float
    step: int
    round: int = 0
    work: str = ""
    condition: Condition = Condition()


class AgentsBarred(Timed, frozen=True):
    """The set of agents that are shut out for a reason, such as a revoked certificate, changed."""

    agents: frozenset[str]
    reason: str


class CardChanged(Timed, frozen=True):
    """The run's card changed, so every agent measures itself again."""


class RoundPlanned(Timed, frozen=True):
    """The next round was planned."""

    plan: RoundPlan


class PhaseBegan(Timed, frozen=True):
    """A phase begins.

    work, round, limit, quorum, wanted, spares, flowing, carries, timed: see `Phase`.
    tasks: the tasks to send.
    """

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


class TaskAdded(Timed, frozen=True):
    """The task of a spare was made and recorded."""

    planned: Planned


class UpdateOffered(Timed, frozen=True):
    """An agent offers an update."""

    agent: str
    offer: Offer


class ChunkCame(Keyed, frozen=True):
    """A chunk of an update was stored."""


class UpdateCame(Keyed, frozen=True):
    """A complete update is on disk and passed its checks.

    transfer: name of its transfer, repeated in the answer.
    digest: its sha256.
    loss: of its training; NaN for other work, and after the end of its phase.
    """

    attempt: int
    transfer: str
    digest: str
    loss: float


class UpdateLost(Keyed, frozen=True):
    """An accepted update is missing or damaged in the spool, so it is requested again."""


class UpdateRefused(Keyed, frozen=True):
    """An update was refused. kind: size or update."""

    attempt: int
    transfer: str
    reason: str
    kind: str = "update"


class TaskFailed(Keyed, frozen=True):
    """An agent could not do its task. paused: the device may not work now, or has no room; a later
    task may succeed.
    """

    attempt: int
    reason: str
    paused: bool = False


class UpdateFolded(Keyed, frozen=True):
    """An update was added to the total."""


class SnapshotTaken(Timed, frozen=True):
    """A snapshot of the total was tried.

    keys: the updates in it; empty if it failed.
    written: whether it was written.
    """

    keys: tuple[Key, ...]
    written: bool


class RoundStored(Timed, frozen=True):
    """The round is in the store. No journal holds this event: the next segment begins with the
    value after it.
    """


class Resumed(Timed, frozen=True):
    """Another process resumed the run and replayed all earlier events. rules: of its
    configuration.
    """

    rules: Rules


class TasksDropped(Timed, frozen=True):
    """The coordinator gave up tasks.

    keys: the tasks.
    reason: in words.
    round: whether the current round starts over.
    """

    keys: tuple[Key, ...]
    reason: str
    round: bool


class SpoolFilled(Timed, frozen=True):
    """An update found no room in the spool."""


class Ticked(Timed, frozen=True):
    """Time passed, and all messages that arrived before are handled.

    queued: further updates that wait for an upload slot or for room.
    unqueued: updates that no longer do.
    """

    queued: frozenset[Key] = frozenset()
    unqueued: frozenset[Key] = frozenset()


class TransfersRestored(Timed, frozen=True):
    """The store, which could not be reached, works again. Agents may wait before they try again."""


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
    | TransfersRestored
    | UpdateCame
    | UpdateFolded
    | UpdateLost
    | UpdateOffered
    | UpdateRefused
)
