"""Disk space that a round keeps from updates for its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.fleet.submodel_shipment import Shipment
from coordinator.phases import training
from coordinator.phases.run_context import RunContext
from tests.support.memory_federation import Member, digits, federate


def test_the_first_round_reserves_room_for_new_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes share no weights, so the total and the stored weights hold each of them."""
    reserve, rounds = training.measure_reserve, dict[int, int]()

    def measure(run: RunContext, shipment: Shipment) -> int:
        bytes = reserve(run, shipment)
        rounds.setdefault(shipment.state.round, bytes + run.store.journal.size)
        return bytes

    monkeypatch.setattr(training, "measure_reserve", measure)
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
