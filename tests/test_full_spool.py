"""A coordinator whose disk holds fewer updates than arrive between two snapshots: the round
completes, and no update is lost or folded twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coordinator.fleet.submodel_shipment import Shipment
from coordinator.phases import training
from coordinator.phases.run_context import RunContext
from coordinator.store.journal import Journal
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total
from federated.task import Update
from tests.support.disks import small_disk
from tests.support.memory_federation import RUN, Member, digits, federate

pytestmark = pytest.mark.processes

AGENTS = 6
SETTINGS = {
    "method.widths": [1.0],
    "model.name": "mlp-small",
    "train.steps": 2,
    "rounds": 2,
    "evaluate.examples": 20,
    "evaluate.devices": False,
    "journal.every": 32,
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 32 MB."""
    folder = tmp_path / "runs"
    folder.mkdir()
    with small_disk(folder, 32) as disk:
        yield disk


def members(trained: Counter[tuple[str, int]]) -> list[Member]:
    def count(update: Update) -> Update:
        if update.work == "train":
            trained[update.agent, update.round] += 1
        return update

    return [Member(f"a{i}", digits(i, AGENTS), change=count) for i in range(AGENTS)]


def test_a_disk_that_holds_two_updates_holds_a_round_of_six(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    reserve, snapshot, taken, crowded = (
        training.measure_reserve,
        Journal.write_total,
        Counter[int](),
        set[int](),
    )

    def crowd(run: RunContext, shipment: Shipment) -> int:
        """Fill the disk at the start of a round, up to the reserve and room for two updates of the
        whole network.
        """
        state = shipment.state
        if state.round not in crowded:
            crowded.add(state.round)
            weights = sum(tensor.nbytes for tensor in state.tensors.values())
            with (disk / "ballast").open("wb") as file:
                free = os.statvfs(disk)
                os.posix_fallocate(
                    file.fileno(),
                    0,
                    free.f_bavail * free.f_frsize - reserve(run, shipment) - 5 * weights // 2,
                )
        return reserve(run, shipment)

    def counted(self: Journal, name: str, total: Total) -> None:
        snapshot(self, name, total)
        taken[int(name.split("-")[1])] += 1

    monkeypatch.setattr(training, "measure_reserve", crowd)
    monkeypatch.setattr(Journal, "write_total", counted)
    trained = Counter[tuple[str, int]]()
    cramped = federate(tmp_path, members(trained), SETTINGS).result.state.tensors
    assert trained == {(f"a{i}", number): 1 for i in range(AGENTS) for number in (1, 2)}, (
        "nothing is asked for twice"
    )
    assert min(taken[1], taken[2]) >= 2, "six updates by twos, though a snapshot is made of 32"
    store = Store.open(disk, RUN, read_only=True)
    for number in (1, 2):
        entries = store.read_entries(number)
        assert [(entry.agent, entry.outcome) for entry in entries] == [
            (f"a{i}", "folded") for i in range(AGENTS)
        ]
        assert sorted(entry.position for entry in entries) == list(range(AGENTS))
    store.close()
    monkeypatch.undo()
    roomy = federate(tmp_path / "roomy", members(Counter()), SETTINGS).result.state.tensors
    for home, value in roomy.items():
        torch.testing.assert_close(cramped[home], value, rtol=1e-4, atol=1e-6)
