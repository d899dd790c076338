"""Simulated devices share one thread, and take turns in it."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from coordinator.run.config_sources import ConfigSources
from coordinator.simulate import simulated_devices
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.simulated_devices import Devices, PooledRunner
from coordinator.simulate.workers import OwnThread
from federated.device.agent_event_loop import AgentEventLoop
from federated.wire import topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.scripted_coordinator import CARD


def test_a_device_handles_all_its_news_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    def serve(device: AgentEventLoop, link: MemoryLink, runner: PooledRunner) -> bool:
        served.append(link.client_id)
        return before(device, link, runner)

    before = simulated_devices.serve_device
    monkeypatch.setattr(simulated_devices, "serve_device", serve)
    monkeypatch.setattr(simulated_devices, "SWEEP", 1e9)
    settings = ("data.name=digits", "simulate.agents=3")
    config, broker = ConfigSources(settings=settings).load(), MemoryBroker()
    source = DataSource.from_config(config)
    devices = Devices(broker, config, source, OwnThread(source, config, Event()))
    try:
        devices.join(CARD, tmp_path)
        for _ in range(20):  # what they received at the start
            devices.turn(0.0)
        served.clear()
        for name in ("d0", "d2", "d0", "d0"):
            broker.publish(topics.command(CARD.run, name), b"nonsense", retain=False)
        for _ in range(4):
            devices.turn(0.0)
        assert served == ["d0", "d2"]
    finally:
        devices.close()
