"""Bounds, rules and budgets: what they rest on, and what of it is still known after a restart."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from coordinator.store.store import Store
from coordinator.trust.defences import Defences
from coordinator.trust.norm_tables import Evidence, Measured
from coordinator.trust.privacy_budget import epsilon
from federated.engine.aggregate import Part, Total, fold
from federated.engine.kept_parts import Kept
from federated.engine.robust.catalogue import RULES
from federated.errors import Refused, StoreError
from tests.support.defences import MENU, PLAIN, STATE, checked, config, database, defences, update


def test_whether_an_update_is_accepted_depends_on_earlier_rounds_alone(tmp_path):
    """Five move by 0.1 in round 1, where one by 1000 is only measured; in round 2 the first to come
    is judged as the last.
    """
    known = database()
    first = defences(tmp_path, known)
    check = partial(checked, first)
    for agent in range(5):
        check(update(0.1, f"a{agent}"))
    check(update(1000.0, "b"))
    first.write()
    for changes in ([0.9, 1.2, 0.1], [1.2, 0.1, 0.9]):
        second = defences(tmp_path, known, round=2, robust__bound=10.0)
        judged = {}
        for change in changes:
            try:
                checked(second, update(change, round=2))
            except Refused:
                judged[change] = False
            else:
                judged[change] = True
        assert judged == {0.1: True, 0.9: True, 1.2: False}


def test_norms_outlive_the_coordinator(tmp_path):
    """What was measured before a restart bounds what comes after it, and what a round measured
    twice counts once.
    """
    store = Store.create(tmp_path, "run")
    one = Defences(config(), store.evidence, tmp_path / "kept", 1)
    for agent in range(5):
        checked(one, update(0.1, f"a{agent}"))
    one.write()
    for agent in range(5):
        checked(one, update(0.1, f"a{agent}"))
    one.write()
    store.close()
    again = Store.open(tmp_path, "run")
    two = Defences(config(), again.evidence, tmp_path / "kept", 2)
    (bound,) = two.bounds.values()
    assert (bound.updates, bound.rounds, bound.factor) == (5, (1, 1), 100.0)
    again.close()


def test_norms_that_bound_nothing_any_more_are_not_kept_for_ever():
    known = Evidence(database())
    for round in range(1, 100):
        known.keep([Measured(round, "a", "s", "weights", 1.0)])
    assert [one.round for one in known.measured(100)] == list(range(90, 100))
    assert known._database.execute("SELECT COUNT(*) FROM norms").fetchone()[0] <= 21


def test_a_database_that_takes_nothing_is_a_store_error(tmp_path):
    made = database()
    one = defences(tmp_path, made)
    checked(one, update(0.1))
    made.close()
    with pytest.raises(StoreError, match="norms of updates"):
        one.write()
    with pytest.raises(StoreError, match="round 1 tells"):
        one.evidence.release(1, {"a": 1.0})


@pytest.mark.parametrize("rule", [name for name, known in RULES.items() if not known.clips])
def test_rules_that_compare_updates_keep_them(tmp_path, rule):
    assert isinstance(defences(tmp_path, robust__rule=rule).begin(1, MENU), Kept)


def test_what_is_added_up_is_not_kept(tmp_path):
    assert defences(tmp_path).begin(1, MENU) is None
    assert defences(tmp_path, robust__rule="clip", robust__clip=1.0).begin(1, MENU) is None


def test_the_rule_clip_shortens_by_earlier_rounds_and_keeps_the_first(tmp_path):
    """Five moved each of 19 weights by 0.1: later changes are as long as that at most."""
    known = database()
    one = defences(tmp_path, known, robust__rule="clip")
    assert isinstance(one.begin(1, MENU), Kept)
    for agent in range(5):
        checked(one, update(0.1, f"a{agent}"))
    one.write()
    two = defences(tmp_path, known, round=2, robust__rule="clip", robust__bound=0)
    assert two.begin(2, MENU) is None
    size = sum(value.size for value in update(0.0).tensors.values())
    assert two.limit(MENU[0]) == pytest.approx(0.1 * size**0.5, rel=1e-5)
    total, plan = Total(), PLAIN.place(STATE, MENU[0])
    two.fold(total, STATE, MENU[0], PLAIN.parts(STATE, plan, update(50.0)), ("a", 2))
    for home, one_sum in total.sums.items():
        assert (one_sum.value / 5 - STATE.tensors[home]).numpy() == pytest.approx(0.1, rel=1e-3)


def test_a_disk_that_is_full_is_a_store_error(tmp_path, monkeypatch):
    one = defences(tmp_path, robust__rule="median")
    kept = one.begin(1, MENU)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("federated.engine.kept_parts.write", full)
    with pytest.raises(StoreError, match=r"the update of a could not be kept in .*: No space left"):
        one.fold(
            kept,
            STATE,
            MENU[0],
            PLAIN.parts(STATE, PLAIN.place(STATE, MENU[0]), update(0.1)),
            ("a", 1),
        )


def test_what_was_told_is_counted_before_it_is_shown_and_over_restarts(tmp_path):
    known, given = database(), {"private__noise": 2.0, "private__clip": 1.0}
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), torch.tensor([1.0]))], ("a", 1))
    found = []
    for round in (1, 1, 2):  # the first round is finished twice, by two coordinators
        one = defences(tmp_path, known, round=round, **given)
        one.release(round, total)
        found.append(one.epsilon)
    assert found == sorted(set(found))
    assert one.evidence.spent() == {"a": 0.75}
    one.release(3, Total())
    assert one.evidence.spent() == {"a": 0.75}


def test_a_budget_ends_the_run_before_it_is_exceeded(tmp_path):
    limit = epsilon({"a": 1.0}, 1e-5)  # four rounds at noise 2
    one = defences(tmp_path, private__noise=2.0, private__clip=1.0, private__epsilon=limit + 1e-6)
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), torch.tensor([1.0]))], ("a", 1))
    for round in range(1, 5):
        assert not one.exhausted
        one.release(round, total)
    assert one.epsilon <= limit + 1e-6
    assert "another round could bring epsilon to" in one.exhausted
