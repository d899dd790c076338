"""The devices of a site, some of which are silent or differ from the others."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.access.broker_setup import BrokerAccess
from coordinator.gateway.site import Site
from coordinator.gateway.site_profile import GatewayFacts
from federated.errors import FleetError
from federated.task import Profile
from federated.wire import topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.scripted_agent import PROFILE, ScriptedAgent
from tests.support.scripted_coordinator import CARD

NEXT = replace(CARD, batch=16)  # the card after it changed
TIMED = replace(PROFILE, timings=(replace(PROFILE.timings[0], batch=16),))


def open_site(folder: Path, names: str) -> tuple[Site, list[ScriptedAgent], list[str]]:
    """Return a site, its devices, which measured themselves, and what the gateway says."""
    broker, lines = MemoryBroker(), list[str]()
    link = MemoryLink(broker, "gateway")
    access, facts = BrokerAccess("", link=link), GatewayFacts("site", (), (2**18, 1e6))
    site = Site(link, access, CARD, folder, facts, lines.append)
    devices = [ScriptedAgent(broker, name) for name in names]
    assert site.wait_for_devices(len(devices), 10, threading.Event())
    return site, devices, lines


def publish(profile: Profile, *devices: ScriptedAgent) -> None:
    for device in devices:
        device.say(replace(profile, agent=device.name), topics.profile("r", device.name))


def test_a_device_that_never_measures_itself_does_not_stall_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.gateway.site.GRACE", 0.3)
    site, (a, b, _), _ = open_site(tmp_path, "abc")
    threading.Timer(0.2, lambda: publish(TIMED, a, b)).start()
    began = time.monotonic()
    assert site.measure(NEXT).devices == 2
    assert time.monotonic() - began < 30


def test_one_quick_device_does_not_speak_for_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as the whole site until the others have measured themselves."""
    monkeypatch.setattr("coordinator.gateway.site.GRACE", 0.0)
    site, (a, b, c), _ = open_site(tmp_path, "abc")
    publish(TIMED, a)
    threading.Timer(1.0, lambda: publish(TIMED, b, c)).start()
    assert site.measure(NEXT).devices == 3


def test_a_gateway_that_is_stopped_does_not_wait_for_measurements(tmp_path: Path) -> None:
    site, _, _ = open_site(tmp_path, "a")
    stop, pings = threading.Event(), list[None]()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(FleetError, match="no device"):
        site.measure(NEXT, stop, lambda: pings.append(None))
    assert pings  # a service manager would restart it otherwise
