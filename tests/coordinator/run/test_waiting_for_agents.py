"""Waiting before a round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Event, RoundDelayed
from coordinator.run import waiting_for_agents
from coordinator.run.waiting_for_agents import MIN_DELAY, count_empty, wait_for_agents
from coordinator.store.run_store import Store
from federated.task import Update
from federated.wire import topics
from federated.wire.links.memory import MemoryBroker
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.scripted_agent import ScriptedAgent


def test_the_card_is_published_again_while_waiting_for_agents(
    fleet: MessageLoop, memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that lost its retained messages has no card for agents that connect later."""
    monkeypatch.setattr(waiting_for_agents, "REPUBLISH", 0.0)
    topic = topics.run(fleet.run.run)
    memory.retained.clear()

    def connect(event: Event) -> None:
        if topic in memory.retained and not fleet.agents:
            ScriptedAgent(memory, "a")

    assert [agent.name for agent in wait_for_agents(fleet, 1, 30.0, connect)] == ["a"]


def test_a_delay_follows_a_round_without_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training fails for one round, for example because the device's disk is full."""
    monkeypatch.setattr(waiting_for_agents, "MIN_DELAY", 0.5)
    delays: list[Event] = []

    def fail(update: Update) -> Update:
        if update.round == 1 and update.work == "train":
            raise OSError("no room")
        return update

    settings = {
        "method.widths": [0.5, 1.0],
        "model.name": "mlp-small",
        "train.steps": 1,
        "rounds": 2,
        "assign.submodels": {"*": "w1-d2"},
    }
    read = lambda event: delays.append(event) if isinstance(event, RoundDelayed) else None  # noqa: E731
    federate(tmp_path, [Member("a0", digits(0, 1), change=fail)], settings, read=read)
    assert len(delays) >= 2
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        assert [[entry.outcome for entry in store.read_entries(number)] for number in (1, 2)] == [
            ["failed: no room"],
            ["folded"],
        ]
        assert count_empty(store) == 0
    assert MIN_DELAY == 15.0
