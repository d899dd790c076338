"""Keep what each agent did in earlier rounds: its submodels, folded updates and track record. The
history is a frozen value, and functions return the changed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from immutables import Map

from coordinator.assign.agent_track_record import Standing
from coordinator.observe.round_records import Entry, Folded
from coordinator.store.run_store import Store
from coordinator.store.training_counts import Counts, count_by_round
from federated.task import Task
from models.submodel import Submodel

__all__ = [
    "FleetHistory",
    "load_history",
    "record_counts",
    "record_fold",
    "record_standings",
    "record_tasks",
]


@dataclass(frozen=True)
class FleetHistory:
    """The results of all rounds so far. Maps are persistent: a changed copy shares all but a few
    nodes with the original.

    assigned: agent -> the submodel that it was asked to train last, as in the menu.
    trained: agent -> the submodels that its folded updates trained, without owners and branches.
    folded: agent -> round of the last task with a folded update.
    standings: agent -> its standing.
    counts: number of trainings of each submodel.
    """

    assigned: Map[str, Submodel] = field(default_factory=Map)
    trained: Map[str, frozenset[Submodel]] = field(default_factory=Map)
    folded: Map[str, int] = field(default_factory=Map)
    standings: Map[str, Standing] = field(default_factory=Map)
    counts: Counts = field(default_factory=Counts)


def load_history(store: Store, menu: Sequence[Submodel]) -> FleetHistory:
    """Read the results of the stored rounds. Open tasks are not in the store."""
    known = {submodel.name: submodel for submodel in menu}
    counts = count_by_round(store)
    return FleetHistory(
        Map(
            {
                agent: known[name]
                for agent, name in store.read_last_submodels().items()
                if name in known
            }
        ),
        Map(
            {
                agent: frozenset(known[name].plain for name in names if name in known)
                for agent, names in store.read_trained_submodels().items()
            }
        ),
        Map(store.read_last_folded()),
        Map(store.agents.read_standings()),
        counts[max(counts)],
    )


def record_standings(history: FleetHistory, standings: Mapping[str, Standing]) -> FleetHistory:
    """Replace the standings of these agents."""
    return replace(history, standings=history.standings.update(standings))


def record_tasks(history: FleetHistory, tasks: Iterable[Task]) -> FleetHistory:
    """Record the submodels that agents were asked to train. An agent's latest task counts."""
    asked = {
        task.agent: task.submodel.unowned for task in sorted(tasks, key=lambda task: task.round)
    }
    return replace(history, assigned=history.assigned.update(asked))


def record_fold(history: FleetHistory, one: Folded, round: int) -> FleetHistory:
    """Record a folded update. round: of its task; a late update may follow a newer one."""
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
