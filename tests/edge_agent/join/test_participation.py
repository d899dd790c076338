"""An agent checks its options before it loads data, and measures the device again when its limits
change or it throttles.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from msgspec.structs import replace as changed

from edge_agent.device.heat_and_load import Heat
from edge_agent.device.measurement_drift import LOOK, Watch
from edge_agent.device.process_limits import Limits
from edge_agent.join.participation import (
    LINK_LOST,
    JoinRequest,
    find_run,
    join,
    measure_device,
    read_limits,
    remeasure,
    say_nothing,
    take_part,
)
from edge_agent.join.training_process_control import Job, Worker
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.errors import FleetError, LinkError, StoreError
from federated.task import Profile
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.menu import menu
from models.named_network import network
from tests.support.scripted_coordinator import Agent

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_training")]
NETWORK = network("preresnet", (1, 8, 8), 10)
(SMALL,) = menu(NETWORK, (0.25,), (2,))
CARD = messages.Run("r", "fedavg", "preresnet", NETWORK, (SMALL,), 32, "s")
COOL = Heat(50.0, 1000.0, False, False, 0)


class Device:
    """An agent with a real training process, and a clock and a heat that the test sets."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.now, self.heat = 0.0, COOL
        self.said: list[str] = []
        self.worker = Worker(Job("a", "digits", None, "0/8", "iid", 0, "cpu", "", limits, ("eu",)))
        self.worker.load()
        broker = MemoryBroker()
        self.link, self.listener = MemoryLink(broker, "a"), MemoryLink(broker, "coordinator")
        self.listener.subscribe(topics.profile("r", "a"))
        equipment = Equipment(
            lambda card: measure_device(self.worker, card, self.link, say_nothing),
            self.worker,
            Spool(folder),
        )
        self.participant = AgentEventLoop(self.link, CARD, "a", "s1", equipment)
        self.participant.join()
        self.watch = Watch(lambda: read_limits(self.worker), lambda: self.heat, lambda: self.now)

    def later(self) -> Profile:
        """Return the profile that the coordinator has some seconds later."""
        self.now += LOOK
        remeasure(self.participant, self.worker, self.watch, self.said.append)
        known = None
        while (delivery := self.listener.receive(0)) is not None:
            if delivery.topic == topics.profile("r", "a"):
                known = envelope.decode(delivery.payload)
        assert known is None or isinstance(known, Profile)
        return known or self.participant.state.profile


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[Device]]:
    """Yield a list for the devices of a test, whose processes are ended after it."""
    made: list[Device] = []
    yield made
    for device in made:
        device.worker.close()


def group_of(pid: int) -> Path | None:
    """Return the control group of a training process, or None."""
    return next(iter(Path("/sys/fs/cgroup").glob(f"**/espalier-{pid}-*/")), None)


@pytest.mark.timed
def test_a_smaller_cpu_quota_leads_to_a_new_profile(devices: list[Device], tmp_path: Path) -> None:
    devices.append(device := Device(Limits(cpus=0.8), tmp_path))
    group = group_of(device.worker.pid)
    if group is None:
        pytest.skip("control groups cannot be written here")
    before = device.later()
    assert (before.cpus, before.labels, device.said) == (0.8, ("eu",), [])
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text("2000 20000")
    else:
        (group / "cpu.cfs_quota_us").write_text("2000")
    after = device.later()
    assert after.cpus == pytest.approx(0.1)
    assert after.timings[0].seconds > 2 * before.timings[0].seconds
    assert (
        device.said[0] == "measuring again: its limit changed from 0.8 processors to 0.1 processors"
    )
    assert len(device.said) == 2
    device.later()
    assert len(device.said) == 2, "once"


@pytest.mark.slow
def test_losing_processors_leads_to_a_new_profile(devices: list[Device], tmp_path: Path) -> None:
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        pytest.skip("one processor")
    devices.append(device := Device(Limits(), tmp_path))
    os.sched_setaffinity(device.worker.pid, here[:1])
    assert device.later().cpus == 1


@pytest.mark.slow
def test_throttling_leads_to_a_measurement_without_the_cache(
    devices: list[Device], tmp_path: Path
) -> None:
    devices.append(device := Device(Limits(), tmp_path))
    before = device.later().timings[0].seconds
    device.heat = Heat(85.0, 600.0, True, True, 1)
    after = device.later().timings[0].seconds
    assert device.said[0] == "measuring again: the processor is throttled"
    assert after != before, "two measurements are never the same to the last digit"


@pytest.mark.slow
def test_the_training_process_survives_a_failed_measurement(
    devices: list[Device], tmp_path: Path
) -> None:
    devices.append(device := Device(Limits(), tmp_path))
    before, pid = device.later(), device.worker.pid
    strange = replace(
        CARD, calibration=(replace(SMALL, network=replace(NETWORK, family="os:system")),)
    )
    device.participant.state = changed(device.participant.state, card=strange)
    device.heat = Heat(85.0, 600.0, True, True, 1)
    assert device.later() == before
    assert device.said == ["measuring again: the processor is throttled"]
    device.participant.state = changed(device.participant.state, card=CARD)
    os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[:1])
    assert device.later().cpus == 1
    assert device.worker.pid == pid, "the process was not replaced"


@pytest.mark.slow
def test_a_training_process_that_dies_while_measuring_is_replaced_and_the_profile_stays(
    devices: list[Device], tmp_path: Path
) -> None:
    devices.append(device := Device(Limits(), tmp_path))
    before = device.later()
    died = device.worker.pid
    os.kill(died, signal.SIGKILL)
    device.heat = Heat(85.0, 600.0, True, True, 1)
    assert device.later() == before
    assert device.worker.alive
    assert device.worker.pid != died
    os.sched_setaffinity(device.worker.pid, sorted(os.sched_getaffinity(0))[:1])
    assert device.later().cpus == 1


def test_a_run_with_another_protocol_version_is_reported() -> None:
    broker = MemoryBroker()
    MemoryLink(broker, "coordinator").publish(
        topics.run("r"), msgpack.packb({"v": 99, "kind": "run", "body": {}}), retain=True
    )
    with pytest.raises(
        FleetError,
        match=r"fl/v1/r/run: .*protocol 99.*upgrade",
    ):
        find_run(MemoryLink(broker, "agent"), None, 0.2)


@pytest.mark.parametrize(
    ("broker", "spool", "problem", "words"),
    [
        ("127.0.0.1:9", "new", LinkError, "127.0.0.1:9"),
        ("127.0.0.1:9", "file", StoreError, "--spool .*file: .*a file is in place"),
    ],
)
def test_the_broker_and_the_spool_are_checked_before_the_data(
    tmp_path: Path, broker: str, spool: str, problem: type[Exception], words: str
) -> None:
    (tmp_path / "file").touch()
    job = Job("a", "none.npz", None, "", "iid", 0, "cpu", "", Limits(), ())
    with pytest.raises(problem, match=words):
        join(JoinRequest(job, broker, None, 1.0, tmp_path / spool), threading.Event())


def test_an_agent_says_that_it_lost_the_broker_and_reconnected(tmp_path: Path) -> None:
    agent, stop = Agent(tmp_path), threading.Event()
    said: list[str] = []
    steps = iter([agent.link.drop, lambda: None, agent.link.restore, lambda: None, stop.set])

    def after_turn() -> float:
        if not agent.link.backlog:
            next(steps)()
        return 0.0

    take_part(agent.participant, stop, said.append, after_turn)
    agent.stop()
    assert said[1:] == [LINK_LOST, "reconnected to the broker"]
