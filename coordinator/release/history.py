"""Record the history of a run's releases, of models or of agents' software: the stable version, the
canary, and rollbacks with their reasons. Pure functions over one record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from federated.errors import ExportError
from federated.wire.release_messages import Installed, Release, Serving, Software, Version

__all__ = [
    "FORMAT",
    "HISTORY",
    "WITHOUT_DIGEST",
    "Event",
    "History",
    "Item",
    "ModelHistory",
    "ReportType",
    "SoftwareHistory",
    "VersionType",
    "add_reports",
    "build_card",
    "compute_digest",
    "find_rollback_event",
    "find_rollback_target",
    "is_intact",
    "list_kept",
    "list_reports",
    "promote",
    "release",
    "roll_back",
    "start_canary",
]

FORMAT = 2
WITHOUT_DIGEST = 1  # the format of version 0.1.0
HISTORY = "history.json"  # name of the file


class Named(Protocol):
    """What is released, and the number of the run's finished rounds then."""

    @property
    def name(self) -> str: ...
    @property
    def round(self) -> int: ...


class Report(Protocol):
    """What an agent says about releases: the version that it has, and one that it rejected."""

    @property
    def version(self) -> str: ...
    @property
    def refused(self) -> str: ...


VersionType = TypeVar("VersionType", bound=Named)
ReportType = TypeVar("ReportType", bound=Report)


@dataclass(frozen=True)
class Item(Generic[VersionType, ReportType]):
    """One version.

    version: what is released.
    before: the report of each agent when the version was released.
    reports: the last report of each agent about the version.
    """

    version: VersionType
    before: Mapping[str, ReportType] = field(default_factory=dict)
    reports: Mapping[str, ReportType] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """A change of a version's state.

    time: UTC, ISO 8601.
    version: its name.
    what: the change.
    reasons: why it was rolled back, or what a forced promotion ignored.
    agents: of a canary.
    """

    time: str
    version: str
    what: Literal["canary", "promoted", "released", "replaced", "rolled back"]
    reasons: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


@dataclass(frozen=True)
class History(Generic[VersionType, ReportType]):
    """The releases of a run.

    run: its name.
    stable, previous, canary: names of versions; empty if there is none.
    agents: those that get the canary.
    items: versions by name.
    events: in the order in which they happened.
    format: of the file.
    digest: sha256 of the other fields in the file; empty elsewhere.
    """

    run: str
    stable: str = ""
    previous: str = ""
    canary: str = ""
    agents: tuple[str, ...] = ()
    items: Mapping[str, Item[VersionType, ReportType]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    format: int = FORMAT
    digest: str = ""


ModelHistory: TypeAlias = History[Version, Serving]
SoftwareHistory: TypeAlias = History[Software, Installed]


def compute_digest(history: History[VersionType, ReportType]) -> str:
    """Return the sha256 of a history without its digest."""
    return hashlib.sha256(
        msgspec.json.encode(replace(history, digest=""), order="deterministic")
    ).hexdigest()


def is_intact(history: History[VersionType, ReportType]) -> bool:
    """Return True if a history that was read has its digest, or a format without one."""
    if not history.digest:
        return history.format == WITHOUT_DIGEST
    return history.digest == compute_digest(history)


def build_card(history: ModelHistory) -> Release:
    """Return the card that tells agents what to serve."""
    stable, canary = (
        history.items[name].version if name else None for name in (history.stable, history.canary)
    )
    return Release(history.run, stable, canary, history.agents)


def list_kept(history: History[VersionType, ReportType]) -> tuple[str, ...]:
    """Return the versions that agents may need, now or after a rollback."""
    return tuple(name for name in (history.stable, history.canary, history.previous) if name)


def release(
    history: History[VersionType, ReportType], item: Item[VersionType, ReportType], time: str
) -> History[VersionType, ReportType]:
    """Release a version to all agents at once, replacing any other canary. Has no effect for the
    stable version.
    """
    name = item.version.name
    if name == history.stable:
        return history
    history = _remove_canary(history, name, time)
    items = {**history.items, name: item}
    changed = replace(history, stable=name, previous=history.stable, items=items)
    return _add_event(changed, Event(time, name, "released"))


def start_canary(
    history: History[VersionType, ReportType],
    item: Item[VersionType, ReportType],
    agents: Sequence[str],
    time: str,
) -> History[VersionType, ReportType]:
    """Release a version to some agents, replacing another canary. Raises ExportError for the stable
    version.
    """
    name = item.version.name
    if name == history.stable:
        raise ExportError(
            f"version {name} (round {item.version.round}) is already stable, so it cannot be a "
            "canary"
        )
    history = _remove_canary(history, name, time)
    items = {**history.items, name: item}
    changed = replace(history, canary=name, agents=tuple(agents), items=items)
    return _add_event(changed, Event(time, name, "canary", agents=tuple(agents)))


def promote(
    history: History[VersionType, ReportType], time: str, reasons: Sequence[str] = ()
) -> History[VersionType, ReportType]:
    """Make the canary stable. reasons: what a forced promotion ignores. Raises ExportError without
    a canary.
    """
    name = history.canary
    if not name:
        raise ExportError(
            f"run '{history.run}' has no canary to promote: start one with --canary 10%"
        )
    changed = replace(history, stable=name, previous=history.stable, canary="", agents=())
    return _add_event(changed, Event(time, name, "promoted", tuple(reasons)))


def find_rollback_target(history: History[VersionType, ReportType]) -> tuple[str, str]:
    """Return the version that a rollback withdraws, and the one that replaces it (empty if there is
    none). Raises ExportError if there is nothing to roll back to.
    """
    if history.canary:
        return history.canary, history.stable
    if history.previous:
        return history.stable, history.previous
    only = f"version {history.stable} is the only one" if history.stable else "nothing was released"
    raise ExportError(f"run '{history.run}' has nothing to roll back to: {only}")


def roll_back(
    history: History[VersionType, ReportType], time: str, reasons: Sequence[str] = ()
) -> History[VersionType, ReportType]:
    """Withdraw the canary; without one, make the previous version stable again. Raises ExportError
    as `find_rollback_target` does.
    """
    name, then = find_rollback_target(history)
    changed = (
        replace(history, canary="", agents=())
        if history.canary
        else replace(history, stable=then, previous="")
    )
    return _add_event(changed, Event(time, name, "rolled back", tuple(reasons)))


def find_rollback_event(history: History[VersionType, ReportType], name: str) -> Event | None:
    """Return the event that rolled a version back, if that is its last event."""
    last = next((event for event in reversed(history.events) if event.version == name), None)
    return last if last is not None and last.what == "rolled back" else None


def add_reports(
    history: History[VersionType, ReportType], servings: Mapping[str, ReportType]
) -> History[VersionType, ReportType]:
    """Add the agents' current reports, each to the version that it is about."""
    items = dict(history.items)
    for agent, serving in servings.items():
        for name in {serving.version, serving.refused} & items.keys():
            items[name] = replace(items[name], reports={**items[name].reports, agent: serving})
    return replace(history, items=items)


def list_reports(history: History[VersionType, ReportType]) -> dict[str, ReportType]:
    """Return the last known report of each agent."""
    names = (history.previous, history.stable, history.canary)
    return {
        agent: serving
        for name in names
        if name
        for agent, serving in history.items[name].reports.items()
    }


def _remove_canary(
    history: History[VersionType, ReportType], name: str, time: str
) -> History[VersionType, ReportType]:
    if not history.canary or history.canary == name:
        return replace(history, canary="", agents=())
    return _add_event(
        replace(history, canary="", agents=()), Event(time, history.canary, "replaced")
    )


def _add_event(
    history: History[VersionType, ReportType], event: Event
) -> History[VersionType, ReportType]:
    return replace(history, events=(*history.events, event))
