"""The benchmark of rounds: how its fleets take turns, how it measures a fleet, and compares it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.round import bare_mqtt_client, fleets
from benchmarks.round.bare_mqtt_client import Client, Traffic, answer_rounds, send_rounds
from benchmarks.round.command import make_rows, measure
from benchmarks.round.fleets import Course
from benchmarks.round.turns import Turns
from coordinator.broker import local_broker


def test_a_fleet_runs_a_round_only_in_its_turn(tmp_path: Path) -> None:
    turns, begun = Turns(tmp_path), threading.Event()

    def run_rounds() -> None:
        fleet = Turns(tmp_path)
        fleet.begin()
        begun.set()
        fleet.end()
        fleet.begin()

    other = threading.Thread(target=run_rounds)
    other.start()
    assert not begun.wait(0.2)
    turns.start(1)
    assert begun.wait(60)
    while turns.read(1) is None:
        time.sleep(0.01)
    assert 0 <= turns.read(1) < 60
    assert other.is_alive()
    turns.stop()
    other.join(60)
    assert turns.read(2) is None


def test_a_fleet_is_compared_with_bare_clients_and_its_memory_with_limits() -> None:
    model = 45_000_000
    them = {
        ("ours", "mosquitto"): Course(2.6, 4.0, 260_000_000, 260_000_000 + 2 * model),
        ("bare clients", "mosquitto"): Course(2.0, 3.0, 30_000_000, 90_000_000),
        ("flwr", ""): Course(3.0, 4.4, 0, 0),
        ("flwr deployment", ""): Course(26.0, 8.0, 0, 0),
    }
    rows = {(row.name, row.baseline.name): row for row in make_rows({2: them})}
    name = "2 agents, mosquitto"
    assert rows[f"round, {name} (ms)", "bare clients"].met
    assert not rows[f"round, {name} (ms)", "flwr"].met
    assert rows[f"round, {name} (ms)", "flwr deployment"].met
    assert rows[f"processor time, {name} (ms)", "bare clients"].ratio == 0.75
    assert rows[f"processor time, {name} (ms)", "flwr"].ratio == pytest.approx(1.1)
    assert rows[f"processor time, {name} (ms)", "flwr deployment"].ratio == 2
    assert not rows[f"base memory, {name} (MB)", "at most"].met
    assert rows[f"growth, {name} (models)", "at most"].ours == pytest.approx(2, abs=0.1)
    assert rows[f"growth, {name} (models)", "at most"].met


@pytest.mark.broker
def test_bare_clients_lose_nothing_if_the_receiver_is_slower_than_the_broker_keeps_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        turns = Turns(tmp_path)
        turns.start(1)
        send_rounds(broker.address, turns, traffic, agent.start)
        agent.join()
    assert turns.read(1) is not None


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.usefixtures("forked_commands")
def test_a_fleet_and_bare_clients_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [one.replace("preresnet-18", "preresnet-10") for one in fleets.SETTINGS]
    monkeypatch.setattr(fleets, "SETTINGS", small)
    monkeypatch.setattr(fleets, "MODEL", "preresnet-10")
    found = measure(tmp_path, ["embedded"], 1, [], 3)
    assert found.keys() == {("ours", "embedded"), ("bare clients", "embedded")}
    for one in found.values():
        assert 0 < one.seconds < 60
        assert 0 < one.processor < 60
        assert one.base <= one.peak
