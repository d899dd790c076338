"""Whole runs with an agent that does not answer in time."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.store.run_store import Store
from federated.task import Update
from tests.support.memory_federation import RUN, Member, digits, federate

DEADLINE, ROUNDS = 4.0, 90


@pytest.mark.slow
def test_rounds_wait_for_a_slow_agent_until_it_is_a_suspect_and_readmit_it(tmp_path: Path) -> None:
    """It misses two deadlines, sits out round 3, and is asked as a probe in round 4. Its answer to
    the probe comes in a later round. It is fast from then on.
    """
    slow, answered = [1, 2, 4], threading.Event()

    def delay(update: Update) -> Update:
        if update.work == "train" and update.round in slow:
            time.sleep(2 * DEADLINE)
            if update.round == slow[-1]:
                answered.set()
        return update

    def pause(update: Update) -> Update:
        """Lengthen rounds until the probe is answered, so that rounds are left after it."""
        if update.round > 3:
            answered.wait(0.5)
        return update

    settings = {
        "method.widths": [0.5],
        "method.depths": [2],
        "train.steps": 1,
        "evaluate.every": 99,
        "evaluate.between": False,
        "rounds": ROUNDS,
        "fleet.deadline": DEADLINE,
    }
    members = [
        Member("slow", digits(0, 2), change=delay),
        Member("well", digits(1, 2), change=pause),
    ]
    federate(tmp_path, members, settings)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        outcomes = [
            {e.agent: e.outcome for e in store.read_entries(number)}
            for number in range(1, ROUNDS + 1)
        ]
        seconds = [row[1] for row in store.read_history()]
        decisions = dict(store.agents.read_decisions("slow"))
    probed = [n for n, d in decisions.items() if d.asked and "does not wait for it" in d.reason]
    assert probed == [4]
    assert min(seconds[:2]) >= DEADLINE
    assert max(seconds[2:]) < DEADLINE
    assert all(found["well"] == "folded" for found in outcomes)
    assert outcomes[3]["slow"] == "late"
    assert outcomes[-1]["slow"] == "folded"
