"""What a round asks its driver to do: frozen records. Doing an action twice does no harm."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from coordinator.observe.events import Event
from federated.task import Key, Task
from federated.wire.messages import Offer

__all__ = [
    "Abort",
    "Action",
    "Answer",
    "Ask",
    "Fold",
    "Forget",
    "Prepare",
    "Receive",
    "Relieve",
    "Report",
    "Snapshot",
    "TurnAway",
]


class Ask(Struct, frozen=True):
    """Send an agent its task."""

    task: Task


class Prepare(Struct, frozen=True):
    """Make the task of a spare; `TaskAdded` follows."""

    agent: str


class Abort(Struct, frozen=True):
    """Tell an agent that its task is no longer wanted."""

    task: Task
    reason: str


class TurnAway(Struct, frozen=True):
    """Tell an agent why it cannot take part."""

    agent: str
    reason: str


class Receive(Struct, frozen=True):
    """Take an offered update in, as soon as there is a slot and room for it."""

    agent: str
    offer: Offer


class Answer(Struct, frozen=True):
    """Tell an agent whether its update was accepted. kind: of a refusal (see `Rejected`)."""

    agent: str
    transfer: str
    accepted: bool
    reason: str
    kind: str = ""


class Fold(Struct, frozen=True):
    """Add an update to the total; `UpdateFolded` follows."""

    key: Key


class Snapshot(Struct, frozen=True):
    """Write a snapshot of the total, which holds these updates; `SnapshotTaken` follows."""

    keys: tuple[Key, ...]


class Forget(Struct, frozen=True):
    """Remove an update from the spool."""

    key: Key


class Relieve(Struct, frozen=True):
    """Let updates that wait for room in the spool try again. made: whether files left the spool."""

    made: bool


class Report(Struct, frozen=True):
    """Publish this to everyone who watches the run."""

    event: Event


Action: TypeAlias = (
    Abort
    | Answer
    | Ask
    | Fold
    | Forget
    | Prepare
    | Receive
    | Relieve
    | Report
    | Snapshot
    | TurnAway
)
