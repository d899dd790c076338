"""Runs with gateways over brokers in memory, compared with runs of the same devices without."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from coordinator.access.broker_setup import BrokerAccess
from edge_agent.join.participation import find_run
from edge_gateway.gateway import take_turns
from edge_gateway.site import Site
from edge_gateway.site_profile import GatewayFacts
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.runtime.service_manager import ServiceManager
from federated.wire.link import Link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.memory_federation import RUN, Member, digits, federate, run_members
from tests.support.waiting import eventually

State = Mapping[str, NDArray[Any]]
# with a larger learning rate, training would multiply the rounding of the round before
QUICK = {
    "model.name": "mlp-small",
    "train.epochs": 1,
    "method.lr": 0.005,
    "rounds": 2,
    "method.name": "fedavg",
}


@dataclass
class Gateway:
    """A gateway in a thread, with its devices. It takes the place of a `Member` of a federation.

    cut, mend: beginnings of lines of the gateway; they cut and restore the uplink.
    """

    name: str
    devices: list[Member]
    cut: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    end: Any = None
    error: BaseException | None = None
    abandoned: bool = False

    def live(self, link: Link, folder: Path) -> None:
        assert isinstance(link, MemoryLink)
        try:
            self._live(link, folder / self.name)
        except BaseException as error:
            self.error = error
        finally:
            link.close()

    def _live(self, link: MemoryLink, folder: Path) -> None:
        def say(line: str) -> None:
            self.lines.append(line)
            if line.startswith(self.cut):
                link.drop()
            elif line.startswith(self.mend):
                link.restore()

        broker, stop = MemoryBroker(), threading.Event()
        card = find_run(link, RUN, 30)
        facts = GatewayFacts(self.name, (), (262_144, 1e9))
        near = MemoryLink(broker, "coordinator")
        site = Site(near, BrokerAccess("", link=near), card, folder / "site", facts, say)
        with run_members(self.devices, broker, folder):
            try:
                site.wait_for_devices(len(self.devices), 30, stop)
                equipment = Equipment(
                    site.measure, site.rounds, Spool(folder / "uplink"), site.explain_pause
                )
                participant = AgentEventLoop(link, card, self.name, "s1", equipment)
                self.end = take_turns(participant, site, ServiceManager(), stop, say)
            finally:
                site.leave("over", over=True)
        near.close()


@dataclass
class Late(Member):
    """A device that joins once a gateway was refused."""

    after: Gateway | None = None

    def live(self, link: Link, folder: Path) -> None:
        after = self.after
        assert after is not None
        eventually(lambda: after.end is not None or after.error is not None)
        super().live(link, folder)


def make_devices(count: int = 4) -> list[Member]:
    return [Member(f"a{i}", digits(i, count)) for i in range(count)]


def run(folder: Path, members: list[Any], settings: Mapping[str, Any] = QUICK) -> list[State]:
    """Return the states after each round."""
    federate(folder, members, settings)
    for member in members:
        assert member.error is None, member.error
    paths = sorted(folder.glob("runs/*/round-*.safetensors"))
    return [load_file(path) for path in paths]


def assert_equal(found: list[State], wanted: list[State]) -> None:
    """Compare states, which differ by the rounding of float32 sums. Without one of four devices,
    they would differ by 0.03.
    """
    for here, there in zip(found, wanted, strict=True):
        assert here.keys() == there.keys()
        assert max(float(np.abs(here[name] - there[name]).max()) for name in there) <= 1e-6


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[State]:
    """The states of a run of four devices without gateways."""
    return run(tmp_path_factory.mktemp("without"), make_devices())


def test_two_sites_learn_what_their_devices_learn_without_gateways(
    tmp_path: Path, without: list[State]
) -> None:
    devices = make_devices()
    gateways = [Gateway("site-a", devices[:2]), Gateway("site-b", devices[2:])]
    assert_equal(run(tmp_path, gateways), without)
    for gateway in gateways:
        assert (gateway.end.updates, gateway.end.refused) == (2, False)
        assert all(device.error is None for device in gateway.devices)


def test_a_site_whose_uplink_is_cut_while_it_trains_loses_nothing(
    tmp_path: Path, without: list[State]
) -> None:
    """The uplink of one site is away from the moment when its devices get the tasks of the second
    round until the gateway has combined their updates.
    """
    devices = make_devices()
    cut = Gateway(
        "site-a",
        devices[:2],
        cut=("round 2: 2 devices to train",),
        mend=("round 2: combined the train",),
    )
    assert_equal(run(tmp_path, [cut, Gateway("site-b", devices[2:])]), without)
    assert any(line.startswith("lost the connection") for line in cut.lines)
    assert "reconnected to the broker" in cut.lines


def test_a_gateway_beside_devices_counts_by_its_examples(
    tmp_path: Path, without: list[State]
) -> None:
    devices = make_devices()
    assert_equal(run(tmp_path, [Gateway("site", devices[1:]), devices[0]]), without)


def test_a_run_that_weighs_all_devices_alike_refuses_a_gateway(tmp_path: Path) -> None:
    """The gateway learns the reason, and the run goes on with the device that joins after this."""
    devices = make_devices(3)
    gateway = Gateway("site", devices[:2])
    settings = {**QUICK, "method.weighting": "uniform", "fleet.min_agents": 1}
    run(tmp_path, [gateway, Late(**vars(devices[2]), after=gateway)], settings)
    assert gateway.end.refused
    assert "cannot use gateways" in gateway.end.reason
    assert "method.weighting = 'samples'" in gateway.end.reason
