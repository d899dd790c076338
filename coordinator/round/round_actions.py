"""Define the actions that a round requests from `coordinator.fleet.round_event_loop`, such as
sending a task or adding an update to the sum. All are safe to repeat.
"""

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
    "RefuseAgent",
    "Relieve",
    "Report",
    "Snapshot",
]


class Ask(Struct, frozen=True):
    """Send an agent its task."""

    task: Task


class Prepare(Struct, frozen=True):
    """Make the task of a spare. Causes `TaskAdded`."""

    agent: str


class Abort(Struct, frozen=True):
    """Cancel an agent's task."""

    task: Task
    reason: str


class RefuseAgent(Struct, frozen=True):
    """Tell an agent why it cannot take part."""

    agent: str
    reason: str


class Receive(Struct, frozen=True):
    """Receive an offered update as soon as there is an upload slot and room for it."""

    agent: str
    offer: Offer


class Answer(Struct, frozen=True):
    """Tell an agent whether its update was accepted. kind: category of a refusal (see
    `Rejected`).
    """

    agent: str
    transfer: str
    accepted: bool
    reason: str
    kind: str = ""


class Fold(Struct, frozen=True):
    """Add an update to the total. Causes `UpdateFolded`."""

    key: Key


class Snapshot(Struct, frozen=True):
    """Write a snapshot of the total, which holds these updates. Causes `SnapshotTaken`."""

    keys: tuple[Key, ...]


class Forget(Struct, frozen=True):
    """Remove an update from the spool."""

    key: Key


class Relieve(Struct, frozen=True):
    """Retry updates that wait for room in the spool. made: whether files left the spool."""

    made: bool


class Report(Struct, frozen=True):
    """Publish an event to all readers of the run."""

    event: Event


Action: TypeAlias = (
    Abort
    | Answer
    | Ask
    | Fold
    | Forget
    | Prepare
    | Receive
    | RefuseAgent
    | Relieve
    | Report
    | Snapshot
)
