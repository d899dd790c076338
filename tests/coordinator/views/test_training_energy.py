"""Energy is power times steps times the seconds of a step, and unknown without the power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.assign.decision_record import Decision
from coordinator.observe.round_records import Entry, RoundRecord
from coordinator.store.run_store import Store
from coordinator.views.training_energy import estimate_energy, sum_known
from federated.task import Card, Profile

CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))


def profile(name: str, watts: float) -> Profile:
    return Profile(name, "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", CARD, (), watts=watts)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run of one round, in which each agent was expected to need half a second per step."""
    made = Store.create(tmp_path, "r")
    profiles = {name: profile(name, watts) for name, watts in (("a", 4.0), ("b", 6.0), ("c", 0.0))}
    decisions = {name: Decision(name, "w1", asked=True, step=0.5) for name in profiles}
    made.agents.write_decisions(1, decisions, profiles)
    yield made
    made.close()


def save(store: Store, *entries: Entry) -> None:
    store.save(RoundRecord(1, 2.0, {}, {}, entries, [], 0, 0))


def test_a_measured_step_counts_before_an_expected_one(store: Store) -> None:
    save(
        store,
        Entry("a", "w1", "folded", 10, 3, 0.1, 9.0),
        Entry("b", "w1", "folded", 10, 3, 0.1, 9.0, 0.25),
    )
    assert estimate_energy(store) == {1: {"a": 4.0 * 3 * 0.5, "b": 6.0 * 3 * 0.25}}


def test_energy_without_power_is_unknown_and_so_is_its_sum(store: Store) -> None:
    save(store, Entry("a", "w1", "folded", 10, 3, 0.1, 9.0), Entry("c", "w1", "folded", 10, 3))
    found = estimate_energy(store)[1]
    assert found == {"a": 6.0, "c": None}
    assert sum_known([*found.values()]) is None
    assert sum_known([found["a"], 1.0]) == 7.0
    assert sum_known([]) == 0.0


def test_a_late_update_counts_beside_that_of_the_round(store: Store) -> None:
    late = Entry("a", "w1", "folded", 10, 2, 0.1, 9.0, 1.0, task=7)
    save(store, late, Entry("a", "w1", "folded", 10, 3, 0.1, 9.0))
    assert estimate_energy(store) == {1: {"a": 4.0 * (2 * 1.0 + 3 * 0.5)}}


def test_only_accepted_trainings_count(store: Store) -> None:
    save(store, Entry("a", "w1", "late"))
    assert estimate_energy(store) == {1: {}}
