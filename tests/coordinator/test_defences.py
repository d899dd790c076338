"""Defences from the configuration to a run: what does not go together, what liars come to, what is still known after a restart."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator import evidence
from coordinator.bounds import Measured
from coordinator.command import check_same
from coordinator.config import load
from coordinator.defences import Defences, check_covered, defended
from coordinator.store import Store
from federated.aggregate import Total, fold
from federated.errors import ConfigError, Refused, StoreError
from federated.kept import Kept
from federated.method import Part, configure
from federated.methods.catalogue import method
from federated.task import Update
from models.families import initial, network
from tests.support.federation import Member, digits, federate

FEDAVG = {"method.name": "fedavg", "train.norm": "tracked", "model.name": "mlp", "train.steps": 2}


def config(**given):
    return load(None, {}, [(key.replace("__", "."), value) for key, value in given.items()])


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.executescript(evidence.SCHEMA)
    return made


def defences(folder: Path, known: sqlite3.Connection | None = None, round: int = 1, **given) -> Defences:
    return Defences(config(**given), evidence.Evidence(known or database()), folder, round)


# ---- what does not go together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"robust__rule": "median"}, "robust.rule = 'median': not with method fedfa: each layer .*; methods that stand it: allsmall, .*fedavg"),
        ({"private__noise": 1.0, "private__clip": 1.0}, "private.noise = 1: not with method fedfa"),
        ({"method__name": "fedavg", "private__noise": 1.0}, "multiples of private.clip, .* expected that above 0, found 0"),
        ({"method__name": "fedavg", "private__clip": 1.0}, "expected private.noise above 0"),
        ({"method__name": "fedavg", "robust__rule": "median", "fleet__mode": "buffered", "fleet__buffer": 2}, "fleet.buffer of at least 3, found 2"),
        ({"method__name": "fedavg", "private__epsilon": 1.0}, "expected private.noise above 0"),
        ({"method__name": "fedavg", "robust__clip": 1.0}, "expected robust.rule = 'clip', found 'none'"),
        ({"method__name": "fedavg", "private__noise": 1.0, "private__clip": 1.0, "robust__rule": "krum"}, "expected one of them"),
        ({"method__name": "fedavg", "private__noise": 1.0, "private__clip": 1.0, "fleet__mode": "buffered"}, "fleet.mode = 'sync'"),
        ({"method__name": "fedavg", "private__noise": 1.0, "private__clip": 1.0, "fleet__late": "take"}, "fleet.late = 'drop'"),
    ],
)
def test_what_does_not_go_together_is_said_before_a_run(given, words):
    asked = config(**given)
    with pytest.raises(ConfigError, match=words):
        defended(method(asked.method_name), asked)


@pytest.mark.parametrize(
    ("given", "known", "words"),
    [
        ({}, True, "evaluate.devices = false.*'scores'"),
        ({"evaluate__devices": False, "evaluate__local": True}, True, "evaluate.local = false.*'scores'"),
        ({"evaluate__devices": False, "train__norm": "static"}, True, "method.norm = 'tracked'.*'statistics'"),
        ({"evaluate__devices": False}, False, "--data.*'moments'"),
    ],
)
def test_what_a_private_run_would_show_without_noise_is_refused_unless_it_is_named(given, known, words):
    asked = config(method__name="fedavg", private__noise=1.0, private__clip=1.0, **given)
    settings = configure(method("fedavg"), asked.settings)
    menu = method("fedavg").menu(network("preresnet", (1, 8, 8), 10), settings)
    with pytest.raises(ConfigError, match=words):
        check_covered(asked, settings, menu, known=known)
    named = config(method__name="fedavg", private__noise=1.0, private__clip=1.0, private__uncovered=["moments", "scores", "statistics"], **given)
    check_covered(named, settings, menu, known=known)
    check_covered(config(method__name="fedavg", **given), settings, menu, known=known)


# ---- bounds --------------------------------------------------------------------------------------------------------

NET = network("mlp", (4,), 3)
PLAIN = method("fedavg")
SETTINGS = configure(PLAIN, {"norm": "static"})
MENU = PLAIN.menu(NET, SETTINGS)
STATE = PLAIN.start(initial(NET, 0), MENU, SETTINGS)


def update(change: float, agent: str = "a0", round: int = 1) -> Update:
    sent = PLAIN.dispatch(STATE, PLAIN.place(STATE, MENU[0]))
    tensors = {name: value.numpy() + np.float32(change) for name, value in sent.items()}
    return Update("r", round, 1, agent, "train", MENU[0], "r0", 5, 1, tensors)


def test_whether_an_update_is_accepted_depends_on_earlier_rounds_alone(tmp_path):
    """Five move by 0.1 in round 1, where one by 1000 is only measured; in round 2 the first to come is judged as the last."""
    known = database()
    first = defences(tmp_path, known)
    check = first.checker(PLAIN, STATE)
    for agent in range(5):
        check(update(0.1, f"a{agent}"))
    check(update(1000.0, "b"))
    first.write()
    for changes in ([0.9, 1.2, 0.1], [1.2, 0.1, 0.9]):
        second = defences(tmp_path, known, round=2, robust__bound=10.0)
        judged = {}
        for change in changes:
            try:
                second.checker(PLAIN, STATE)(update(change, round=2))
            except Refused:
                judged[change] = False
            else:
                judged[change] = True
        assert judged == {0.1: True, 0.9: True, 1.2: False}


def test_norms_outlive_the_coordinator(tmp_path):
    """What was measured before a restart bounds what comes after it, and what a round measured twice counts once."""
    store = Store.create(tmp_path, "run")
    one = Defences(config(), store.evidence, tmp_path / "kept", 1)
    for agent in range(5):
        one.checker(PLAIN, STATE)(update(0.1, f"a{agent}"))
    one.write()
    for agent in range(5):
        one.checker(PLAIN, STATE)(update(0.1, f"a{agent}"))
    one.write()
    store.close()
    again = Store.open(tmp_path, "run")
    two = Defences(config(), again.evidence, tmp_path / "kept", 2)
    (bound,) = two.bounds.values()
    assert (bound.updates, bound.rounds, bound.factor) == (5, (1, 1), 100.0)
    again.close()


def test_norms_that_bound_nothing_any_more_are_not_kept_for_ever():
    known = evidence.Evidence(database())
    for round in range(1, 100):
        known.keep([Measured(round, "a", "s", "weights", 1.0)])
    assert [one.round for one in known.measured(100)] == list(range(90, 100))
    assert known._database.execute("SELECT COUNT(*) FROM norms").fetchone()[0] <= 21


def test_a_database_that_takes_nothing_is_a_store_error(tmp_path):
    made = database()
    one = defences(tmp_path, made)
    one.checker(PLAIN, STATE)(update(0.1))
    made.close()
    with pytest.raises(StoreError, match="norms of updates"):
        one.write()
    with pytest.raises(StoreError, match="round 1 tells"):
        one.evidence.release(1, {"a": 1.0})


# ---- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["trimmed", "median", "krum", "multikrum"])
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
        one.checker(PLAIN, STATE)(update(0.1, f"a{agent}"))
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

    monkeypatch.setattr("federated.kept.write", full)
    with pytest.raises(StoreError, match=r"the update of a could not be kept in .*: No space left"):
        one.fold(kept, STATE, MENU[0], PLAIN.parts(STATE, PLAIN.place(STATE, MENU[0]), update(0.1)), ("a", 1))


# ---- privacy -------------------------------------------------------------------------------------------------------


def test_what_was_told_is_counted_before_it_is_shown_and_over_restarts(tmp_path):
    pytest.importorskip("dp_accounting")
    known, given = database(), {"private__noise": 2.0, "private__clip": 1.0}
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), np_tensor(1.0))], ("a", 1))
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
    accounting = pytest.importorskip("dp_accounting")
    limit = accounting.get_epsilon_gaussian(1.0, 1e-5)  # four rounds at noise 2
    one = defences(tmp_path, private__noise=2.0, private__clip=1.0, private__epsilon=limit + 1e-6)
    total = Total()
    fold(total, [Part("w", ((0, 1),), (1,), np_tensor(1.0))], ("a", 1))
    for round in range(1, 5):
        assert not one.exhausted
        one.release(round, total)
    assert one.epsilon <= limit + 1e-6
    assert "another round could bring epsilon to" in one.exhausted


def np_tensor(value: float):
    import torch

    return torch.tensor([value])


# ---- whole runs ----------------------------------------------------------------------------------------------------


def liar(factor: float):
    """Spoils what a device learned from the second round on: its update is so many times what it was."""
    return lambda update: (
        update if update.round < 3 else replace(update, tensors={name: value * np.float32(factor) for name, value in update.tensors.items()})
    )


def test_a_liar_is_refused_with_the_reason_and_honest_devices_are_not(tmp_path):
    members = [Member(f"a{i}", digits(i, 6), change=liar(60.0) if i == 5 else lambda update: update) for i in range(6)]
    found = federate(tmp_path, members, {**FEDAVG, "rounds": 3})
    store = Store.open(tmp_path / "runs", "test", read_only=True)
    outcomes = {entry.agent: entry.outcome for entry in store.entries(3)}
    earlier = {entry.outcome for number in (1, 2) for entry in store.entries(number)}
    store.close()
    assert earlier == {"folded"}
    assert {agent: outcome for agent, outcome in outcomes.items() if agent != "a5"} == dict.fromkeys([f"a{i}" for i in range(5)], "folded")
    assert "expected weights to move by at most" in outcomes["a5"]
    assert found.result.epsilon == 0.0


@pytest.mark.parametrize("rule", ["clip", "trimmed", "krum"])
def test_a_run_by_a_robust_rule_learns_in_spite_of_a_liar(tmp_path, rule):
    """The liar is below every bound, since those are off: the rule alone stands against it."""
    members = [Member(f"a{i}", digits(i, 6, "iid"), change=liar(-5.0) if i == 5 else lambda update: update) for i in range(6)]
    given = {**FEDAVG, "rounds": 4, "train.steps": 0, "robust.rule": rule, "robust.bound": 0, "evaluate.devices": False}
    found = federate(tmp_path, members, given)
    assert found.result.scores[-1].accuracy > 0.6
    assert not list((tmp_path / "runs" / "test" / "kept").glob("*"))


def test_a_private_run_tells_its_epsilon(tmp_path):
    accounting = pytest.importorskip("dp_accounting")
    given = {**FEDAVG, "rounds": 2, "private.noise": 1.5, "private.clip": 1.0, "evaluate.devices": False}
    found = federate(tmp_path, [Member(f"a{i}", digits(i, 3)) for i in range(3)], given)
    assert found.result.epsilon == pytest.approx(accounting.get_epsilon_gaussian(1.5 / 2**0.5, 1e-5))


def test_a_private_run_ends_at_its_budget(tmp_path):
    accounting = pytest.importorskip("dp_accounting")
    limit = float(accounting.get_epsilon_gaussian(1.5, 1e-5)) + 1e-6
    given = {**FEDAVG, "rounds": 5, "private.noise": 1.5, "private.clip": 1.0, "evaluate.devices": False, "private.epsilon": limit}
    found = federate(tmp_path, [Member(f"a{i}", digits(i, 3)) for i in range(3)], given)
    assert found.result.rounds == 1


def test_a_private_run_that_goes_on_goes_on_counting(tmp_path):
    accounting = pytest.importorskip("dp_accounting")
    given = {**FEDAVG, "private.noise": 1.5, "private.clip": 1.0, "evaluate.devices": False}
    for rounds in (1, 3):
        members = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
        found = federate(tmp_path, members, {**given, "rounds": rounds}, resume=rounds > 1)
    assert found.result.rounds == 3
    assert found.result.epsilon == pytest.approx(accounting.get_epsilon_gaussian(1.5 / 3**0.5, 1e-5))


@pytest.mark.parametrize("key", ["private__noise", "private__clip", "robust__clip", "robust__rule"])
def test_a_run_that_goes_on_keeps_what_its_promises_rest_on(key):
    before = config(private__noise=1.0, private__clip=1.0)
    with pytest.raises(ConfigError, match=f"cannot go on with another {key.replace('__', '.')}"):
        check_same(before, config(**{"private__noise": 1.0, "private__clip": 1.0, key: "clip" if key == "robust__rule" else 2.0}))
    check_same(before, config(private__noise=1.0, private__clip=1.0, private__epsilon=5.0, robust__bound=20.0))
