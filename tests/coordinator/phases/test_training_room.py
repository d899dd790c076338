"""The room that a round keeps free of updates: for all that it writes before those can go."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.phases import training
from coordinator.phases.context import RunContext
from federated.method import State
from tests.support.federation import Member, digits, federate


def test_the_first_round_keeps_room_for_all_that_it_adds_to_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes that share nothing, say: a total holds each of them, and so do the weights that are
    stored.
    """
    reserve, rounds = training.measure_reserve, dict[int, int]()

    def noted(run: RunContext, state: State) -> int:
        bytes = reserve(run, state)
        rounds.setdefault(state.round, bytes + run.store.journal.size)
        return bytes

    monkeypatch.setattr(training, "measure_reserve", noted)
    settings = {
        "method.name": "exclusivefl",
        "model.name": "mlp-small",
        "train.steps": 1,
        "rounds": 2,
        "evaluate.examples": 20,
    }
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(
        tmp_path,
        members,
        settings
        | {"evaluate.devices": False, "assign.submodels": {"a0": "w0.2-d2", "a1": "w1-d2"}},
    )
    assert rounds[0] >= rounds[1]
