"""Runs with gateways over brokers in memory, compared with runs of the same devices without."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from coordinator.access.broker_setup import BrokerAccess
from coordinator.fleet.message_loop import MessageLoop
from coordinator.gateway.gateway import take_turns
from coordinator.gateway.site import Site
from coordinator.gateway.site_profile import GatewayFacts
from coordinator.observe.events import Event, RoundEnded
from coordinator.store.run_store import Store
from edge_agent.join.participation import find_run
from export.trainstep.graph_order import make_order
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.runtime.service_manager import ServiceManager
from federated.task import Recipe, Update
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.submodel_building import full
from tests.support.handmade_graphs import Design
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


class Crashed(Exception):
    """The gateway crashes."""


@dataclass
class Gateway:
    """A gateway in a thread, with its devices. It takes the place of a `Member` of a federation.

    cut, mend: beginnings of lines of the gateway; they cut and restore the uplink.
    crash: such beginnings, at the first of which the gateway crashes and starts again.
    link: the uplink, once there is one.
    """

    name: str
    devices: list[Member]
    cut: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()
    crash: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    end: Any = None
    error: BaseException | None = None
    abandoned: bool = False
    session: str = "s1"  # in the last will of a member's link
    link: MemoryLink | None = None

    def live(self, link: Link, folder: Path) -> None:
        assert isinstance(link, MemoryLink)
        near = MemoryBroker()
        try:
            with run_members(self.devices, near, folder / self.name):
                while True:
                    self.link = link
                    try:
                        self._join(link, near, folder / self.name)
                        break
                    except Crashed:
                        self.session = "s2"
                        status = envelope.encode(messages.Status(self.name, "s2", False))
                        will = topics.status(RUN, self.name), status
                        link = MemoryLink(link._broker, self.name, will)
        except BaseException as error:
            self.error = error
        finally:
            link.close()

    def _join(self, link: MemoryLink, broker: MemoryBroker, folder: Path) -> None:
        near, stop = MemoryLink(broker, "coordinator"), threading.Event()

        def say(line: str) -> None:
            self.lines.append(line)
            if line.startswith(self.cut):
                link.drop()
            elif line.startswith(self.mend):
                link.restore()
            elif line.startswith(self.crash):
                self.crash = ()
                link.kill()
                near.kill()
                raise Crashed

        card = find_run(link, RUN, 30)
        facts = GatewayFacts(self.name, (), (262_144, 1e9))
        site = Site(near, BrokerAccess("", link=near), card, folder / "site", facts, say)
        with closing(Spool(folder / "uplink", lasting=True)) as spool:
            site.wait_for_devices(len(self.devices), 30, stop)
            equipment = Equipment(site.measure, site.rounds, spool, site.explain_pause)
            participant = AgentEventLoop(link, card, self.name, self.session, equipment)
            self.end = take_turns(participant, site, ServiceManager(), stop, say)
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


@pytest.mark.parametrize("line", ["round 2: 2 devices to train", "round 2: combined the train"])
def test_a_gateway_that_crashes_and_restarts_loses_nothing(
    tmp_path: Path, without: list[State], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """It crashes when its devices begin to train, or when it has written their combined update."""
    monkeypatch.setattr("coordinator.round.next_round_actions.RETURN_TIME", 600.0)
    devices = make_devices()
    crashed = Gateway("site-a", devices[:2], crash=(line,))
    assert_equal(run(tmp_path, [crashed, Gateway("site-b", devices[2:])]), without)
    assert crashed.crash == (), "it did not crash"
    for number in (1, 2):
        assert read_folded(tmp_path, number) == [("site-a", 0), ("site-b", 0)]


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


def test_a_site_that_comes_back_after_the_round_counts_in_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fleet.late = 'take'`. The round does not wait for the lost site, whose uplink comes
    back when the round has ended. In the next round, a device of the other site waits for it.
    """
    monkeypatch.setattr("coordinator.round.next_round_actions.RETURN_TIME", 0.0)
    devices, fleets = make_devices(), list[MessageLoop]()
    cut = Gateway("site-a", devices[:2], cut=("round 2: 2 devices to train",))

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.done.round == 2:
            assert cut.link is not None
            cut.link.restore()

    def has_come() -> bool:
        tasks = fleets[0].round.tasks.values()
        return any(one.came for one in tasks if one.key[0::2] == ("site-a", 2))

    def wait(update: Update) -> Update:
        if (update.work, update.round) == ("train", 3):
            eventually(has_come)
        return update

    devices[2].change = wait
    gateways: list[Any] = [cut, Gateway("site-b", devices[2:])]
    settings = {**QUICK, "rounds": 3, "fleet.late": "take", "evaluate.devices": False}
    federate(tmp_path, gateways, settings, read=read, watch=fleets.append)
    assert cut.error is None
    assert read_folded(tmp_path, 2) == [("site-b", 0)]
    assert read_folded(tmp_path, 3).count(("site-a", 2)) == 1


def read_folded(folder: Path, number: int) -> list[tuple[str, int]]:
    """Return the agent and the earlier round, if any, of each update that was folded in a round."""
    with closing(Store.open(folder / "runs", RUN, read_only=True)) as store:
        entries = store.read_entries(number)
    return sorted((one.agent, one.task) for one in entries if one.outcome == "folded")


def test_a_site_of_devices_without_pytorch_trains_calibrates_and_scores(tmp_path: Path) -> None:
    """Their graphs are made by hand: each step subtracts the learning rate from every weight."""
    recipe = Recipe(batch=32)
    settings = {
        "method.name": "fedavg",
        "model.name": "mlp",
        "train.norm": "static",
        "train.steps": 2,
        "train.lr": 0.25,
        "train.batch": recipe.batch,
        "rounds": 2,
    }

    def shelve(fleet: MessageLoop) -> None:
        assert fleet.run.network is not None
        submodel = full(fleet.run.network)
        graphs = tmp_path / "runs" / RUN / "graphs" / make_order(submodel, recipe).name
        Design.of(submodel, recipe.batch).write(graphs)

    devices = [Member(f"a{i}", digits(i, 2, "iid"), trainer=OnnxTrainer("cpu")) for i in range(2)]
    gateways: list[Any] = [Gateway("site", devices)]
    federate(tmp_path, gateways, settings, watch=shelve)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        first, second = (store.read_checkpoint(number)[0] for number in (1, 2))
        scores = store.read_scores(2)
    for name, value in first.items():
        if "/" not in name:
            assert (value - second[name]).allclose(value.new_tensor(0.5), atol=1e-5), name
    measured = [value for name, value in second.items() if name.startswith("stats/")]
    assert measured
    assert all(bool((value == 1).all()) for value in measured)
    assert any(score.view == "devices" for score in scores)
