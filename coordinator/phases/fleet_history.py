"""What the rounds of a run have shown of its fleet: one frozen value, and the functions that give
the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from immutables import Map

from coordinator.assign.standing import Standing
from coordinator.observe.records import Entry, Folded
from coordinator.store.store import Store
from coordinator.store.training_counts import Counts, count_by_round
from federated.task import Task
from models.submodel import Submodel

__all__ = [
    "FleetHistory",
    "recall",
    "record_counts",
    "record_fold",
    "record_standings",
    "record_tasks",
]


@dataclass(frozen=True)
class FleetHistory:
    """What the rounds so far have shown. Maps are persistent: a changed copy shares all but a few
    nodes with the original.

    assigned: agent -> the submodel that it was asked to train last, as the menu lists it.
    trained: agent -> all submodels of which an update of it was folded, without owners and
    branches.
    folded: agent -> the last round of whose tasks its update was folded.
    standings: agent -> how it stands.
    counts: how often each submodel was trained.
    """

    assigned: Map[str, Submodel] = field(default_factory=Map)
    trained: Map[str, frozenset[Submodel]] = field(default_factory=Map)
    folded: Map[str, int] = field(default_factory=Map)
    standings: Map[str, Standing] = field(default_factory=Map)
    counts: Counts = field(default_factory=Counts)


def recall(store: Store, menu: Sequence[Submodel]) -> FleetHistory:
    """Read what the stored rounds have shown; nothing where none is stored. Tasks that are still
    open are not in the store.
    """
    known = {submodel.name: submodel for submodel in menu}
    counts = count_by_round(store)
    return FleetHistory(
        Map(
            {agent: known[name] for agent, name in store.last_submodels().items() if name in known}
        ),
        Map(
            {
                agent: frozenset(known[name].plain for name in names if name in known)
                for agent, names in store.trained_submodels().items()
            }
        ),
        Map(store.last_folded()),
        Map(store.agents.read_standings()),
        counts[max(counts)],
    )


def record_standings(history: FleetHistory, standings: Mapping[str, Standing]) -> FleetHistory:
    """Replace the standings of these agents."""
    return replace(history, standings=history.standings.update(standings))


def record_tasks(history: FleetHistory, tasks: Iterable[Task]) -> FleetHistory:
    """Record which submodels agents were asked to train. Of several tasks of one agent the latest
    counts.
    """
    asked = {
        task.agent: task.submodel.unowned for task in sorted(tasks, key=lambda task: task.round)
    }
    return replace(history, assigned=history.assigned.update(asked))


def record_fold(history: FleetHistory, one: Folded, round: int) -> FleetHistory:
    """Record an update that was folded. round: of its task, which a late update may bring after
    that of a newer one.
    """
    agent = one.entry.agent
    return replace(
        history,
        trained=history.trained.set(
            agent, history.trained.get(agent, frozenset()) | {one.submodel}
        ),
        folded=history.folded.set(agent, max(round, history.folded.get(agent, 0))),
        standings=history.standings.set(agent, one.standing),
    )


def record_counts(history: FleetHistory, entries: Iterable[Entry]) -> FleetHistory:
    """Count the updates that a round folded."""
    folded = Counter(entry.submodel for entry in entries if entry.outcome == "folded")
    return replace(history, counts=history.counts.after(folded))
