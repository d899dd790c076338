"""The history of what a run released: which version is stable, which a canary, which was taken back
and why. Pure functions over one record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from federated.errors import ExportError
from federated.wire.release_files import Release, Serving, Version

__all__ = [
    "FORMAT",
    "Event",
    "History",
    "Item",
    "canaried",
    "card_of",
    "kept",
    "latest",
    "promoted",
    "released",
    "reported",
    "roll_target",
    "rolled_back",
    "taken_back",
]

FORMAT = 1


@dataclass(frozen=True)
class Item:
    """One version. before: what agents answered with as it was released; reports: what they last
    said of it.
    """

    version: Version
    before: Mapping[str, Serving] = field(default_factory=dict)
    reports: Mapping[str, Serving] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """What became of a version, and when (UTC, ISO 8601). reasons: why it was taken back, or what
    spoke against a promotion that was forced.
    """

    time: str
    version: str
    what: Literal["canary", "promoted", "released", "replaced", "rolled back"]
    reasons: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """stable, previous, canary: names of versions, empty where there is none; agents: who has the
    canary. items: by name of the version.
    """

    run: str
    stable: str = ""
    previous: str = ""
    canary: str = ""
    agents: tuple[str, ...] = ()
    items: Mapping[str, Item] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    format: int = FORMAT


def card_of(history: History) -> Release:
    """What agents are told."""
    stable, canary = (
        history.items[name].version if name else None for name in (history.stable, history.canary)
    )
    return Release(history.run, stable, canary, history.agents)


def kept(history: History) -> tuple[str, ...]:
    """The versions that agents may want, or want again."""
    return tuple(name for name in (history.stable, history.canary, history.previous) if name)


def released(history: History, item: Item, time: str) -> History:
    """To all agents at once. The same version again changes nothing; a canary of another one is
    replaced.
    """
    name = item.version.name
    if name == history.stable:
        return history
    history = _added(_without_canary(history, name, time), item)
    return _noted(
        replace(history, stable=name, previous=history.stable), Event(time, name, "released")
    )


def canaried(history: History, item: Item, agents: Sequence[str], time: str) -> History:
    """To some agents first; another canary is replaced. Raises ExportError for the version that all
    have already.
    """
    name = item.version.name
    if name == history.stable:
        raise ExportError(
            f"version {name} (round {item.version.round}) is what all agents have "
            "already: there is nothing to try"
        )
    history = _added(_without_canary(history, name, time), item)
    return _noted(
        replace(history, canary=name, agents=tuple(agents)),
        Event(time, name, "canary", agents=tuple(agents)),
    )


def promoted(history: History, time: str, reasons: Sequence[str] = ()) -> History:
    """The canary becomes stable. reasons: what spoke against it. Raises ExportError where none is
    on.
    """
    name = history.canary
    if not name:
        raise ExportError(
            f"run '{history.run}' has no canary to promote: start one by --canary 10%"
        )
    changed = replace(history, stable=name, previous=history.stable, canary="", agents=())
    return _noted(changed, Event(time, name, "promoted", tuple(reasons)))


def roll_target(history: History) -> tuple[str, str]:
    """What a rollback takes back, and what agents have then, perhaps nothing. Raises ExportError
    where there is nothing to go back to.
    """
    if history.canary:
        return history.canary, history.stable
    if history.previous:
        return history.stable, history.previous
    only = f"version {history.stable} is the only one" if history.stable else "nothing was released"
    raise ExportError(f"run '{history.run}' has nothing to roll back to: {only}")


def rolled_back(history: History, time: str, reasons: Sequence[str] = ()) -> History:
    """The canary is withdrawn; without one, the stable version before this one is stable again.
    Raises ExportError as `roll_target` does.
    """
    name, then = roll_target(history)
    changed = (
        replace(history, canary="", agents=())
        if history.canary
        else replace(history, stable=then, previous="")
    )
    return _noted(changed, Event(time, name, "rolled back", tuple(reasons)))


def taken_back(history: History, name: str) -> Event | None:
    """The event that took a version back, where that is the last that became of it."""
    last = next((event for event in reversed(history.events) if event.version == name), None)
    return last if last is not None and last.what == "rolled back" else None


def reported(history: History, servings: Mapping[str, Serving]) -> History:
    """With what agents say by now, each noted with the version that it is about."""
    items = dict(history.items)
    for agent, serving in servings.items():
        for name in {serving.version, serving.refused} & items.keys():
            items[name] = replace(items[name], reports={**items[name].reports, agent: serving})
    return replace(history, items=items)


def latest(history: History) -> dict[str, Serving]:
    """What each agent last said, as far as it was noted."""
    names = (history.previous, history.stable, history.canary)
    return {
        agent: serving
        for name in names
        if name
        for agent, serving in history.items[name].reports.items()
    }


def _added(history: History, item: Item) -> History:
    return replace(history, items={**history.items, item.version.name: item})


def _without_canary(history: History, name: str, time: str) -> History:
    if not history.canary or history.canary == name:
        return replace(history, canary="", agents=())
    return _noted(replace(history, canary="", agents=()), Event(time, history.canary, "replaced"))


def _noted(history: History, event: Event) -> History:
    return replace(history, events=(*history.events, event))
