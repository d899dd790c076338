"""Whole runs with malicious devices, and whole private runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator.store.run_store import Store
from coordinator.trust.privacy_budget import compute_epsilon
from tests.support.memory_federation import Member, digits, federate

FEDAVG = {"method.name": "fedavg", "train.norm": "tracked", "model.name": "mlp", "train.steps": 2}


def scale_update(factor: float):
    """Return a change that multiplies a device's update by a factor from the third round on."""
    return lambda update: (
        update
        if update.round < 3
        else replace(
            update,
            tensors={name: value * np.float32(factor) for name, value in update.tensors.items()},
        )
    )


def test_a_malicious_update_is_refused_and_honest_ones_are_folded(tmp_path):
    members = [
        Member(
            f"a{i}", digits(i, 6), change=scale_update(60.0) if i == 5 else lambda update: update
        )
        for i in range(6)
    ]
    found = federate(tmp_path, members, {**FEDAVG, "rounds": 3})
    store = Store.open(tmp_path / "runs", "test", read_only=True)
    outcomes = {entry.agent: entry.outcome for entry in store.read_entries(3)}
    earlier = {entry.outcome for number in (1, 2) for entry in store.read_entries(number)}
    store.close()
    assert earlier == {"folded"}
    assert {
        agent: outcome for agent, outcome in outcomes.items() if agent != "a5"
    } == dict.fromkeys([f"a{i}" for i in range(5)], "folded")
    assert "expected a change of weights of at most" in outcomes["a5"]
    assert found.result.epsilon == 0.0


@pytest.mark.parametrize("rule", ["clip", "trimmed", "krum"])
def test_a_run_with_a_robust_rule_learns_despite_a_malicious_device(tmp_path, rule):
    """Norm bounds are off, so that only the rule protects the run."""
    members = [
        Member(
            f"a{i}",
            digits(i, 6, "iid"),
            change=scale_update(-5.0) if i == 5 else lambda update: update,
        )
        for i in range(6)
    ]
    given = {
        **FEDAVG,
        "rounds": 4,
        "train.steps": 0,
        "robust.rule": rule,
        "robust.bound": 0,
        "evaluate.devices": False,
    }
    found = federate(tmp_path, members, given)
    assert found.result.scores[-1].accuracy > 0.6
    assert not list((tmp_path / "runs" / "test" / "kept").glob("*"))


def test_a_private_run_reports_its_epsilon(tmp_path):
    given = {
        **FEDAVG,
        "rounds": 2,
        "private.noise": 1.5,
        "private.clip": 1.0,
        "evaluate.devices": False,
    }
    found = federate(tmp_path, [Member(f"a{i}", digits(i, 3)) for i in range(3)], given)
    assert found.result.epsilon == pytest.approx(compute_epsilon({"a": 2 / 1.5**2}, 1e-5))


def test_a_private_run_ends_at_its_budget(tmp_path):
    limit = compute_epsilon({"a": 1 / 1.5**2}, 1e-5) + 1e-6
    given = {
        **FEDAVG,
        "rounds": 5,
        "private.noise": 1.5,
        "private.clip": 1.0,
        "evaluate.devices": False,
        "private.epsilon": limit,
    }
    found = federate(tmp_path, [Member(f"a{i}", digits(i, 3)) for i in range(3)], given)
    assert found.result.rounds == 1


def test_a_resumed_private_run_continues_its_accounting(tmp_path):
    given = {**FEDAVG, "private.noise": 1.5, "private.clip": 1.0, "evaluate.devices": False}
    for rounds in (1, 3):
        members = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
        found = federate(tmp_path, members, {**given, "rounds": rounds}, resume=rounds > 1)
    assert found.result.rounds == 3
    assert found.result.epsilon == pytest.approx(compute_epsilon({"a": 3 / 1.5**2}, 1e-5))
