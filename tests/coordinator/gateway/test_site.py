"""The devices of a site, some of which are silent or differ from the others."""

from __future__ import annotations

import sys
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
from federated.wire import messages, tensors, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.scripted_agent import PROFILE, ScriptedAgent
from tests.support.scripted_coordinator import CARD, task
from tests.support.waiting import eventually

NEXT = replace(CARD, batch=16)  # the card after it changed
TIMED = replace(PROFILE, timings=(replace(PROFILE.timings[0], batch=16),))


def open_site(
    folder: Path, names: str, card: messages.Run = CARD, profile: Profile = PROFILE
) -> tuple[Site, list[ScriptedAgent], list[str]]:
    """Return a site, its devices, which measured themselves, and what the gateway says."""
    broker, lines = MemoryBroker(), list[str]()
    link = MemoryLink(broker, "gateway")
    access, facts = BrokerAccess("", link=link), GatewayFacts("site", (), (2**18, 1e6))
    site = Site(link, access, card, folder, facts, lines.append)
    devices = [ScriptedAgent(broker, name) for name in names]
    publish(profile, *devices)
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


def test_a_device_with_other_data_does_not_end_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the run has a network, nothing tells which of two devices has the right data."""
    card, untimed = replace(CARD, network=None, calibration=()), replace(PROFILE, timings=())
    site, (_, b), _ = open_site(tmp_path, "ab", card, untimed)
    assert site.find_profile() is not None
    publish(replace(untimed, data=replace(untimed.data, inputs=(1, 4, 4))), b)
    eventually(lambda: site.turn(0.1, lambda: False) or site.find_profile() is None)
    site.find_profile()
    assert caplog.text.count("do not fit together") == 1
    publish(untimed, b)
    eventually(lambda: site.turn(0.1, lambda: False) or site.find_profile() is not None)


def test_a_device_that_can_do_less_gets_no_tasks_and_is_named(tmp_path: Path) -> None:
    site, (_, _, weak), lines = open_site(tmp_path, "abc")
    publish(replace(PROFILE, memory=1), weak)
    eventually(lambda: site.turn(0.1, lambda: False) or len(site.list_alike()) == 2)
    assert [line for line in lines if "device c gets no tasks" in line]
    assert site.describe().memory == PROFILE.memory


def test_no_code_is_imported_for_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator names a network as module:function, and a device answers."""
    (tmp_path / "odd_network.py").write_text("def make():\n    raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    site, (a,), _ = open_site(tmp_path / "site", "a")
    content = bytes(tensors.encode({}, {}))
    (tmp_path / "weights").write_bytes(content)
    wanted = task(work="calibrate", weights=content)
    network = replace(wanted.submodel.network, family="odd_network:make")
    wanted = replace(wanted, submodel=replace(wanted.submodel, network=network))
    site.rounds.begin(wanted, tmp_path / "weights", tmp_path / "update")
    a.send(wanted, {}, notes={"batches": 1})
    for _ in range(20):
        site.turn(0.02, lambda: False)
    outcome = site.rounds.poll()
    assert "odd_network" not in sys.modules
    assert outcome is not None
    assert "this gateway lacks" in outcome.reason
