"""Limit devices and groups of devices to the runs in which they may take part.

A device without a limit may take part in every run. Once it or one of its groups has a limit, it
may take part only in the runs that the device or one of its groups was granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coordinator.access.certificate_registry import LIMIT, Registry

__all__ = [
    "Subject",
    "add_run",
    "limit_to_runs",
    "list_excluded",
    "list_exclusions",
    "list_limits",
    "list_runs",
    "set_right",
]

EXCLUDED = """
with given (name, run) as (
    select name, run from rights where kind = 'agent'
    union
    select members.name, rights.run from members
    join rights on rights.kind = 'group' and rights.name = members.team
)
select name from given group by name having max(run = ?) = 0
"""


@dataclass(frozen=True)
class Subject:
    """Who has rights.

    kind: an agent, or a group of devices.
    name: of the agent or the group.
    """

    kind: Literal["agent", "group"]
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "agent" else f"group {self.name}"


def limit_to_runs(registry: Registry, name: str, runs: Iterable[str]) -> None:
    """Let a device take part in these runs only; within `Registry.transaction`."""
    registry.change("delete from rights where kind = 'agent' and name = ?", name)
    for run in (LIMIT, *runs):
        registry.change("insert into rights values ('agent', ?, ?)", name, run)


def set_right(registry: Registry, subject: Subject, run: str | None, *, withdraw: bool) -> None:
    """Grant or withdraw a run, or remove the limit if it is None; within
    `Registry.transaction`.
    """
    place = subject.kind, subject.name
    if run is None:
        registry.change("delete from rights where kind = ? and name = ?", *place)
    elif withdraw:
        registry.change("delete from rights where kind = ? and name = ? and run = ?", *place, run)
    else:
        for name in (LIMIT, run):
            registry.change("insert or ignore into rights values (?, ?, ?)", *place, name)


def add_run(registry: Registry, run: str) -> None:
    """Remember the name of a run that uses this authority."""
    with registry.transaction():
        registry.change("insert or ignore into runs values (?)", run)


def list_runs(registry: Registry) -> list[str]:
    """Return the runs that used this authority, or that any device or group was granted."""
    found = registry.read("select name from runs union select run from rights where run <> ''")
    return sorted(run for (run,) in found)


def list_limits(registry: Registry) -> dict[Subject, tuple[str, ...]]:
    """Return the runs of all devices and groups that have a limit of their own."""
    found: dict[Subject, tuple[str, ...]] = {}
    for kind, name, run in registry.read("select kind, name, run from rights order by 1, 2, 3"):
        subject = Subject(kind, name)
        found[subject] = (*found.get(subject, ()), *([run] if run != LIMIT else []))
    return found


def list_excluded(registry: Registry, run: str) -> frozenset[str]:
    """Return the devices that may not take part in a run."""
    return frozenset(row[0] for row in registry.read(EXCLUDED, run))


def list_exclusions(registry: Registry) -> dict[str, tuple[str, ...]]:
    """Return the runs in which each device may not take part: among those that used this authority
    or that any device or group was granted.
    """
    found: dict[str, tuple[str, ...]] = {}
    for run in list_runs(registry):
        for name in list_excluded(registry, run):
            found[name] = (*found.get(name, ()), run)
    return found
