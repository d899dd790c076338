"""Count how many updates trained each submodel of a run, to mark those that none trained. The
counts come from the run's database, so they are also known for resumed and finished runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from coordinator.observe.round_records import Score
from coordinator.store.run_database_reader import RunRecords

__all__ = [
    "Counts",
    "Trained",
    "count_at",
    "count_by_round",
    "count_run",
    "mark_scores",
]


@dataclass(frozen=True)
class Trained:
    """How often a submodel was trained.

    updates: folded updates that trained it (see `Method.trains`).
    rounds: rounds with at least one of these.
    """

    updates: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Counts:
    """How often each submodel of a menu was trained.

    reach: name of a submodel in the menu -> names of the submodels that its updates train, without
        branches.
    trained: counts by the name of the submodel without branches, as in scores and releases,
        smallest first; empty if nothing is known.
    """

    reach: Mapping[str, frozenset[str]] = field(default_factory=dict)
    trained: Mapping[str, Trained] = field(default_factory=dict)

    @property
    def updates(self) -> dict[str, int]:
        """Number of updates that trained each submodel."""
        return {name: found.updates for name, found in self.trained.items()}

    @property
    def untrained(self) -> list[str]:
        """The submodels that no update trained, smallest first."""
        return [name for name, found in self.trained.items() if not found.updates]

    def after(self, folded: Mapping[str, int]) -> Counts:
        """Return the counts one round later. folded: number of updates of each submodel that the
        round folded, by name in the menu.
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
        """Return the scores with the number of updates that trained their submodel."""
        return tuple(
            replace(one, trained_updates=self.trained[one.submodel].updates)
            if one.submodel in self.trained
            else one
            for one in scores
        )


def count_by_round(records: RunRecords) -> dict[int, Counts]:
    """Return the counts of a run after each round that has updates, in order, and before the first
    one (0); empty counts if nothing is recorded.
    """
    facts, updates = records.read_facts(), records.count_updates()
    if updates is None or not facts.reach:
        return {0: Counts()}
    reach = {name: frozenset(trained) for name, trained in facts.reach.items()}
    found = {0: Counts(reach, {one.plain.name: Trained() for one in facts.menu})}
    for round, several in groupby(updates, key=lambda update: update[0]):
        found[round] = found[max(found)].after({submodel: count for _, submodel, count in several})
    return found


def count_at(found: Mapping[int, Counts], round: int) -> Counts:
    """Return the counts after a round, from those by round."""
    return found[max(number for number in found if number <= round)]


def count_run(records: RunRecords, round: int | None = None) -> Counts:
    """Return the counts of a stored run after a round, by default the last one."""
    found = count_by_round(records)
    return count_at(found, max(found) if round is None else round)


def mark_scores(
    counts: Mapping[int, Counts], scores: Sequence[tuple[int, Score]]
) -> list[tuple[int, Score]]:
    """Return scores with the number of updates of their submodel up to their round. counts: by
    round.
    """
    known = {number: count_at(counts, number) for number in {number for number, _ in scores}}
    return [(number, known[number].mark([score])[0]) for number, score in scores]
