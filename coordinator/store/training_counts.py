"""How often each submodel of a run was trained, counted from the updates that its store records: a
resumed run and a finished one know it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from coordinator.observe.records import Score
from coordinator.store.run_records import RunRecords

__all__ = ["Counts", "Trained", "answering", "at", "by_round", "of_run"]


@dataclass(frozen=True)
class Trained:
    """How often a submodel was trained. updates: folded updates that trained it (see
    `Method.trains`); rounds: rounds with at least one of these.
    """

    updates: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Counts:
    """How often each submodel of a menu was trained.

    reach: name of a submodel as the menu lists it -> names of the submodels that its updates train,
    without branches.
    trained: by name without branches, as scores and releases have it, smallest first; empty where
    nothing is known.
    """

    reach: Mapping[str, frozenset[str]] = field(default_factory=dict)
    trained: Mapping[str, Trained] = field(default_factory=dict)

    @property
    def updates(self) -> dict[str, int]:
        """How many updates trained each submodel."""
        return {name: found.updates for name, found in self.trained.items()}

    @property
    def untrained(self) -> list[str]:
        """The submodels that no update trained, smallest first."""
        return [name for name, found in self.trained.items() if not found.updates]

    def after(self, folded: Mapping[str, int]) -> Counts:
        """The counts one round later. folded: how many updates of each submodel that round folded,
        by name as the menu lists it.
        """
        found = dict(self.trained)
        for name, before in self.trained.items():
            updates = sum(
                count
                for made_with, count in folded.items()
                if name in self.reach.get(made_with, ())
            )
            if updates:
                found[name] = Trained(before.updates + updates, before.rounds + 1)
        return replace(self, trained=found)

    def mark(self, scores: Iterable[Score]) -> tuple[Score, ...]:
        """Scores that say how many updates trained their submodel."""
        return tuple(
            replace(one, trained_updates=self.trained[one.submodel].updates)
            if one.submodel in self.trained
            else one
            for one in scores
        )


def by_round(records: RunRecords) -> dict[int, Counts]:
    """The counts of a run after each round that has updates, in their order, and before the first
    one (0); no counts where nothing is recorded.
    """
    facts, updates = records.read_facts(), records.updates_by_submodel()
    if updates is None or not facts.reach:
        return {0: Counts()}
    reach = {name: frozenset(trained) for name, trained in facts.reach.items()}
    found = {0: Counts(reach, {one.plain.name: Trained() for one in facts.menu})}
    for round, several in groupby(updates, key=lambda update: update[0]):
        found[round] = found[max(found)].after({submodel: count for _, submodel, count in several})
    return found


def at(found: Mapping[int, Counts], round: int) -> Counts:
    """The counts after a round, of those by round."""
    return found[max(number for number in found if number <= round)]


def of_run(records: RunRecords, round: int | None = None) -> Counts:
    """The counts of a stored run after a round, by default the last one."""
    found = by_round(records)
    return at(found, max(found) if round is None else round)


def answering(records: RunRecords) -> dict[str, str]:
    """Which submodel each agent is to answer with, by name without branches: the one that it had
    last.

    Where no update trained that one, the largest trained one among the smaller ones, which fits the
    device too; without any, it stays.
    """
    plain = {submodel.unowned.name: submodel.plain.name for submodel in records.read_facts().menu}
    order, untrained = list(dict.fromkeys(plain.values())), set(of_run(records).untrained)

    def trained(name: str) -> str:
        smaller = order[: order.index(name)] if name in untrained else []
        return next((other for other in reversed(smaller) if other not in untrained), name)

    return {agent: trained(plain.get(name, name)) for agent, name in records.assigned().items()}
