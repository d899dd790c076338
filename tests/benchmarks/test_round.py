"""The benchmark of rounds: how it finds their ends, measures a fleet, and compares it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.round import bare_mqtt_client, command
from benchmarks.round.bare_mqtt_client import Client, Traffic, answer_rounds, send_rounds
from benchmarks.round.command import ENDED, Course, make_rows, measure_once
from coordinator.broker import local_broker


def test_ended_rounds_are_found_in_the_output_of_both() -> None:
    fleet = "round 1 of 2: a0 w1-d2.2\nround 1 took 2.5 s: 2 of 2 updates\nround 2 of 2: a0 w1-d2"
    assert len(ENDED.findall(fleet)) == 1
    assert ENDED.findall("listening\nround 1.250\nround 0.500\n") == ["1.250", "0.500"]


def test_a_fleet_is_compared_with_bare_clients_and_its_memory_with_limits() -> None:
    model = 45_000_000
    fleet = Course(2.6, 4.0, 260_000_000, 260_000_000 + 2 * model)
    found = {("mosquitto", 2): (fleet, Course(2.0, 3.0, 30_000_000, 90_000_000))}
    rows = {
        (row.name, row.baseline.name): row
        for row in make_rows(found, {2: Course(3.0, 4.4, 0, 0)}, {2: 12.0})
    }
    name = "2 agents, mosquitto"
    assert rows[f"round, {name} (ms)", "bare clients"].met
    assert not rows[f"round, {name} (ms)", "flwr"].met
    assert rows[f"processor time, {name} (ms)", "bare clients"].ratio == 0.75
    assert rows[f"processor time, {name} (ms)", "flwr"].ratio == pytest.approx(1.1)
    assert not rows[f"base memory, {name} (MB)", "at most"].met
    assert rows[f"growth, {name} (models)", "at most"].ours == pytest.approx(2, abs=0.1)
    assert rows[f"growth, {name} (models)", "at most"].met


@pytest.mark.broker
def test_bare_clients_lose_nothing_if_the_receiver_is_slower_than_the_broker_keeps_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count, traffic = Client._on_message, Traffic(1, 1, 100 << 20)  # twice what the broker keeps

    def count_slowly(self: Client, *received: Any) -> None:
        if self.name == "hub":
            time.sleep(0.004)
        count(self, *received)

    monkeypatch.setattr(bare_mqtt_client, "SILENCE", 60.0)
    monkeypatch.setattr(Client, "_on_message", count_slowly)
    with local_broker.start("127.0.0.1", 0, "embedded", tmp_path) as broker:
        agent = threading.Thread(target=answer_rounds, args=(broker.address, traffic, "b0"))
        send_rounds(broker.address, traffic, agent.start)
        agent.join()
    assert ENDED.findall(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
def test_a_fleet_and_bare_clients_end_their_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MODEL", "preresnet-10")
    fleet, bare = measure_once(tmp_path / "runs", "embedded", 1, 4)
    for one in (fleet, bare):
        assert 0 < one.seconds < 60
        assert 0 < one.processor < 60
        assert one.base <= one.peak
