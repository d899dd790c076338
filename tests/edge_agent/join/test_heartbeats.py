"""The agent sends heartbeats even if its training process is blocked."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.round.round_events import AgentBeat, RoundEvent
from coordinator.store.run_store import Store
from edge_agent.device.process_limits import Limits
from edge_agent.join.training_process_control import Job, Worker
from tests.support.memory_federation import RUN, Member, digits, federate

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_training")]
# seconds; on a busy machine an agent may be late by some
BEAT, SILENCE, BLOCKED = 0.3, 6.0, 10.0


def listen(fleet: MessageLoop, note: Callable[[AgentBeat], object]) -> None:
    """Call `note` with every heartbeat that the coordinator receives."""
    take = fleet.driver.handle

    def noted(event: RoundEvent) -> None:
        if isinstance(event, AgentBeat):
            note(event)
        take(event)

    fleet.driver.handle = noted  # type: ignore[method-assign]


@pytest.mark.slow
def test_an_agent_with_a_stopped_training_process_does_not_count_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "federated.device.next_agent_actions.heartbeat_interval", lambda lease, least: BEAT
    )
    monkeypatch.setattr("coordinator.round.agent_handlers.SILENCE", SILENCE)
    worker = Worker(Job("a0", "digits", None, "0/2", "iid", 0, "cpu", "", Limits()))
    worker.load()
    os.kill(worker.pid, signal.SIGSTOP)
    beats: list[str] = []

    def real(*given: object) -> Worker:
        return worker

    def watch(fleet: MessageLoop) -> None:
        listen(fleet, lambda beat: beats.append(beat.state))

    def release() -> None:
        while "train" not in beats:
            time.sleep(0.05)
        time.sleep(BLOCKED)
        os.kill(worker.pid, signal.SIGCONT)

    monkeypatch.setattr("tests.support.memory_federation.Here", real)
    waker = threading.Thread(target=release, daemon=True)
    waker.start()
    settings = {
        "model.name": "mlp-small",
        "train.steps": 2,
        "evaluate.devices": False,
        "method.name": "fedavg",
        "fleet.deadline": 60,
    }
    try:
        with caplog.at_level(
            logging.WARNING, logger="coordinator.observe.event_readers.log_output"
        ):
            federate(tmp_path, [Member("a0", digits(0, 2))], settings, watch=watch)
        waker.join(60)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        worker.close()
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    (entry,) = store.read_entries(1)
    store.close()
    assert entry.outcome == "folded"
    assert entry.seconds >= BLOCKED
    assert beats.count("train") > 3, "heartbeats continued"
    assert "silent" not in caplog.text


@pytest.mark.slow
def test_heartbeats_report_the_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "federated.device.next_agent_actions.heartbeat_interval", lambda lease, least: 0.2
    )
    worker = Worker(Job("a0", "digits", None, "0/2", "iid", 0, "cpu", "", Limits(cpus=0.5)))
    worker.load()
    steps: list[int] = []

    def watch(fleet: MessageLoop) -> None:
        listen(fleet, lambda beat: steps.append(beat.step) if beat.state == "train" else None)

    monkeypatch.setattr("tests.support.memory_federation.Here", lambda *given: worker)
    settings = {
        "model.name": "preresnet-10",
        "train.steps": 24,
        "train.epochs": 24,
        "evaluate.devices": False,
        "evaluate.calibrate": "coordinator",
    }
    try:
        federate(
            tmp_path,
            [Member("a0", digits(0, 2))],
            {**settings, "method.name": "fedavg", "fleet.deadline": 120, "evaluate.examples": 20},
            watch=watch,
        )
    finally:
        worker.close()
    assert steps == sorted(steps)
    assert max(steps) <= 24
    assert len(set(steps)) >= 2
