"""Bounds, rules and privacy budgets: what they depend on, and that they survive a restart."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from coordinator.store.run_store import Store
from coordinator.trust.configured_defences import Defences
from coordinator.trust.norm_and_privacy_tables import ChangeNorm, TrustTables, open_tables
from coordinator.trust.privacy_budget import compute_epsilon
from federated.engine.aggregate import Total, fold
from federated.engine.robust.catalogue import RULES
from federated.engine.update_contributions import Part
from federated.engine.update_part_files import PartStore
from federated.errors import Refused, StoreError
from tests.support.small_run_defences import (
    MENU,
    PLAIN,
    STATE,
    check_update,
    config,
    database,
    defences,
    update,
)


def test_acceptance_depends_on_earlier_rounds_only(tmp_path):
    """In round 1 five updates move by 0.1, and one by 1000, which is only measured. In round 2 the
    order of arrival does not matter.
    """
    known = database()
    first = defences(tmp_path, known)
    check = partial(check_update, first)
    for agent in range(5):
        check(update(0.1, f"a{agent}"))
    check(update(1000.0, "b"))
    first.write()
    for changes in ([0.9, 1.2, 0.1], [1.2, 0.1, 0.9]):
        second = defences(tmp_path, known, round=2, robust__bound=10.0)
        judged = {}
        for change in changes:
            try:
                check_update(second, update(change, round=2))
            except Refused:
                judged[change] = False
            else:
                judged[change] = True
        assert judged == {0.1: True, 0.9: True, 1.2: False}


def test_norms_survive_a_restart_of_the_coordinator(tmp_path):
    """Norms from before a restart still bound later updates, and repeated ones count once."""
    store = Store.create(tmp_path, "run")
    one = Defences(config(), store.trust, tmp_path / "kept", 1)
    for agent in range(5):
        check_update(one, update(0.1, f"a{agent}"))
    one.write()
    for agent in range(5):
        check_update(one, update(0.1, f"a{agent}"))
    one.write()
    store.close()
    again = Store.open(tmp_path, "run")
    two = Defences(config(), again.trust, tmp_path / "kept", 2)
    (bound,) = two.bounds.values()
    assert (bound.updates, bound.rounds, bound.factor) == (5, (1, 1), 100.0)
    again.close()


def test_norms_in_a_file_of_their_own_survive_and_damage_names_the_file(tmp_path):
    one = open_tables(tmp_path / "norms.sqlite")
    written = [ChangeNorm(1, "a", "w1", "weights", 2.0)]
    one.write_norms(written)
    one.close()
    two = open_tables(tmp_path / "norms.sqlite")
    assert list(two.read_norms(2)) == written
    two.close()
    (tmp_path / "norms.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(StoreError, match=r"norms\.sqlite.*remove it"):
        open_tables(tmp_path / "norms.sqlite")


def test_norms_too_old_for_any_bound_are_deleted():
    known = TrustTables(database())
    for round in range(1, 100):
        known.write_norms([ChangeNorm(round, "a", "s", "weights", 1.0)])
    assert [one.round for one in known.read_norms(100)] == list(range(90, 100))
    assert known._database.execute("SELECT COUNT(*) FROM norms").fetchone()[0] <= 21


def test_a_failing_database_is_a_store_error(tmp_path):
    made = database()
    one = defences(tmp_path, made)
    check_update(one, update(0.1))
    made.close()
    with pytest.raises(StoreError, match="norms of updates"):
        one.write()
    with pytest.raises(StoreError, match="privacy cost of round 1"):
        one.tables.write_costs(1, {"a": 1.0})


@pytest.mark.parametrize("rule", [name for name, known in RULES.items() if not known.limits_norm])
def test_rules_that_compare_updates_keep_them(tmp_path, rule):
    assert isinstance(defences(tmp_path, robust__rule=rule).begin(1, MENU), PartStore)


def test_updates_that_are_only_added_up_are_not_kept(tmp_path):
    assert defences(tmp_path).begin(1, MENU) is None
    assert defences(tmp_path, robust__rule="clip", robust__clip=1.0).begin(1, MENU) is None


def test_the_rule_clip_uses_norms_of_earlier_rounds_and_keeps_the_first_updates(tmp_path):
    """Five updates moved each of 19 weights by 0.1; later changes are clipped to that norm."""
    known = database()
    one = defences(tmp_path, known, robust__rule="clip")
    assert isinstance(one.begin(1, MENU), PartStore)
    for agent in range(5):
        check_update(one, update(0.1, f"a{agent}"))
    one.write()
    two = defences(tmp_path, known, round=2, robust__rule="clip", robust__bound=0)
    assert two.begin(2, MENU) is None
    size = sum(value.size for value in update(0.0).tensors.values())
    assert two.limit(MENU[0]) == pytest.approx(0.1 * size**0.5, rel=1e-5)
    total, plan = Total(), PLAIN.place(STATE, MENU[0])
    two.fold(total, STATE, MENU[0], PLAIN.parts(STATE, plan, update(50.0)), ("a", 2))
    for home, one_sum in total.sums.items():
        assert (one_sum.value / 5 - STATE.tensors[home]).numpy() == pytest.approx(0.1, rel=1e-3)


def test_an_update_of_a_submodel_without_norms_is_clipped_to_the_median_of_all(tmp_path):
    """An agent that replaces another may have a submodel that nobody else has in the round."""
    known = database()
    rows = [ChangeNorm(1, f"a{agent}", "another", "weights", 0.5) for agent in range(5)]
    TrustTables(known).write_norms(rows)
    one = defences(tmp_path, known, round=2, robust__rule="clip")
    assert isinstance(one.begin(2, MENU), PartStore)
    total, plan = Total(), PLAIN.place(STATE, MENU[0])
    one.fold(total, STATE, MENU[0], PLAIN.parts(STATE, plan, update(50.0)), ("a", 2))
    moved = [one_sum.value / 5 - STATE.tensors[home] for home, one_sum in total.sums.items()]
    length = sum(float(step.square().sum()) for step in moved) ** 0.5
    assert length == pytest.approx(0.5, rel=1e-3)


def test_a_round_in_which_nobody_is_asked_yet_keeps_updates_while_no_norm_is_known(tmp_path):
    one = defences(tmp_path, robust__rule="clip")
    assert isinstance(one.begin(1, ()), PartStore)


def test_a_full_disk_is_a_store_error(tmp_path, monkeypatch):
    one = defences(tmp_path, robust__rule="median")
    kept = one.begin(1, MENU)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("federated.engine.update_part_files.write", full)
    with pytest.raises(StoreError, match=r"update of a in .*: No space left"):
        one.fold(
            kept,
            STATE,
            MENU[0],
            PLAIN.parts(STATE, PLAIN.place(STATE, MENU[0]), update(0.1)),
            ("a", 1),
        )


def test_privacy_costs_are_recorded_before_a_release_and_across_restarts(tmp_path):
    known, given = database(), {"private__noise": 2.0, "private__clip": 1.0}
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), torch.tensor([1.0]))], ("a", 1))
    found = []
    for round in (1, 1, 2):  # two coordinators finish the first round
        one = defences(tmp_path, known, round=round, **given)
        one.release(round, total)
        found.append(one.epsilon)
    assert found == sorted(set(found))
    assert one.tables.read_costs() == {"a": 0.75}
    one.release(3, Total())
    assert one.tables.read_costs() == {"a": 0.75}


def test_a_privacy_budget_ends_the_run_before_it_is_exceeded(tmp_path):
    limit = compute_epsilon({"a": 1.0}, 1e-5)  # four rounds at noise 2
    one = defences(tmp_path, private__noise=2.0, private__clip=1.0, private__epsilon=limit + 1e-6)
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), torch.tensor([1.0]))], ("a", 1))
    for round in range(1, 5):
        assert not one.exhausted
        one.release(round, total)
    assert one.epsilon <= limit + 1e-6
    assert "another round could raise epsilon" in one.exhausted
