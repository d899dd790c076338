"""Memory use of late updates: the states that they are based on stay on disk."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch

from coordinator.observe.round_records import RoundRecord
from coordinator.round.round_state import Round
from coordinator.store.run_store import Store
from federated.task import Update
from tests.support.memory_federation import RUN, Member, digits, federate

SETTINGS = {
    "method.name": "fedfa-w",
    "method.widths": [1.0],
    "model.name": "mlp-small",
    "train.steps": 1,
    "evaluate.examples": 20,
    "evaluate.devices": False,
    "evaluate.between": False,
    "evaluate.every": 100,
    "fleet.mode": "buffered",
    "fleet.buffer": 1,
    "fleet.staleness": 20,
    "rounds": 12,
}


@pytest.mark.slow
def test_late_updates_keep_no_state_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One agent trains the weights of an earlier round for many rounds; its update is checked and
    folded.
    """
    save, states, alive = Store.save, dict[int, weakref.ref[torch.Tensor]](), dict[int, list[int]]()

    def save_and_look(self: Store, done: RoundRecord, value: Round | None = None) -> str:
        digest = save(self, done, value)
        gc.collect()
        alive[done.round] = [
            round
            for round, state in states.items()
            if state() is not None and round < done.round - 1
        ]
        states[done.round] = weakref.ref(next(iter(done.tensors.values())))
        assert value is not None
        open = (
            state.task.round
            for state in value.tasks.values()
            if state.carried and not state.outcome
        )
        carried.update(round for round in open if round < done.round)
        return digest

    quick = Counter[str]()

    def delay(update: Update) -> Update:
        """Let the second agent send three updates for each of the first."""
        quick[update.agent] += 1
        until, wanted = time.monotonic() + 10, quick["a1"] + 3
        while (
            update.agent == "a0"
            and update.round > 1
            and quick["a1"] < wanted
            and time.monotonic() < until
        ):
            time.sleep(0.02)
        time.sleep(0.1)
        return update

    monkeypatch.setattr(Store, "save", save_and_look)
    carried = set[int]()
    federate(tmp_path, [Member(f"a{i}", digits(i, 2), change=delay) for i in range(2)], SETTINGS)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        late = [
            entry.task
            for number in range(1, 13)
            for entry in store.read_entries(number)
            if entry.outcome == "folded" and entry.task
        ]
    assert carried - {1}, "a task with the weights of an earlier round was open"
    assert max(late) > 1, "its update was folded"
    assert alive == {number: [] for number in range(1, 13)}
