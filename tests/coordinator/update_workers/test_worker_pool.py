"""Worker processes at a real broker: one is killed while it receives an update."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.fleet.update_inbox import Inbox
from coordinator.store import run_lock
from coordinator.update_workers import worker_messages, worker_pool
from coordinator.update_workers.worker_pool import WorkerPool, WorkerSettings
from coordinator.update_workers.worker_process import LOOK
from federated.errors import Refused
from federated.task import Key
from federated.wire import envelope, messages, topics
from federated.wire.chunks import Sender, split
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import BOTH
from tests.support.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.broker]
RUN, AGENT = "r", "ann"
KEY = Key(AGENT, "w1", 1, "train")
CHUNKS = 24
DATA = os.urandom(CHUNKS * 1024)
OFFER = messages.Offer(split(DATA, 1024, "t"), RUN, 1, 1, "train", KEY.submodel)


@pytest.fixture(params=BOTH)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with brokers.start("127.0.0.1", 0, request.param, tmp_path / "broker") as broker:
        yield broker.address


@pytest.fixture
def pool(address: str) -> Iterator[WorkerPool]:
    with closing(WorkerPool(WorkerSettings(2, address, RUN), 1, sync=True)) as made:
        yield made


class Device:
    """An agent that sends one update, as far as it is granted. inbox: gets its offers."""

    def __init__(self, address: str, inbox: Inbox) -> None:
        self.inbox = inbox
        self.link, self.sender = MqttLink(address, "device"), Sender(OFFER.manifest, DATA)
        self.link.subscribe(topics.command(RUN, AGENT))

    def turn(self, most: int = CHUNKS) -> None:
        """Send up to this number of chunks."""
        while (delivery := self.link.receive(0.0)) is not None:
            message = envelope.decode(delivery.payload)
            if isinstance(message, messages.Grant):
                self.sender.take_grant(message.have, message.open, time.monotonic())
        if self.sender.check_stall(time.monotonic()):
            self.inbox.open(AGENT, OFFER, 0.0)
        base = topics.upload(RUN, AGENT, "t")
        for chunk in self.sender.next_chunks(most):
            self.link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))


def turn(inbox: Inbox, pool: WorkerPool) -> Path | None:
    """Take the workers' reports, and return the update's file if it is complete."""
    list(pool.take_reports())
    done = inbox.finish_upload(KEY)
    return None if done is None else done[1]


def test_an_update_survives_the_kill_of_the_worker_that_receives_it(
    address: str, pool: WorkerPool, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "spool", 8)
    inbox.workers = pool
    inbox.expect({KEY: len(DATA)})
    first, device = pool.pids, Device(address, inbox)
    with closing(device.link):
        assert inbox.open(AGENT, OFFER, 0.0) is None
        # eight chunks, so that the worker stores its bitmap
        eventually(lambda: [device.turn(8), turn(inbox, pool)] and device.sender.in_flight)
        eventually(lambda: [device.turn(0), turn(inbox, pool)] and not device.sender.in_flight)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        # what is sent before another worker listens is repeated after five seconds
        eventually(lambda: turn(inbox, pool) or len({*pool.pids} - {*first}) == len(first))
        path = eventually(lambda: device.turn() or turn(inbox, pool))
    assert path.read_bytes() == DATA
    assert set(pool.pids).isdisjoint(first)
    assert inbox.load == (0, 0)
    assert not pool.busy


def test_an_update_that_is_no_longer_expected_leaves_no_file(
    address: str, pool: WorkerPool, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "spool", 8)
    inbox.workers = pool
    inbox.expect({KEY: len(DATA)})
    inbox.open(AGENT, OFFER, 0.0)
    spool = tmp_path / "spool"
    eventually(lambda: [*pool.take_reports()] and any(spool.rglob("*.part")))
    inbox.expect({})
    eventually(lambda: not [path for path in spool.rglob("*") if path.is_file()])
    assert not pool.busy


def test_a_wrong_digest_starts_the_transfer_over(
    address: str, pool: WorkerPool, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "spool", 8)
    inbox.workers = pool
    inbox.expect({KEY: len(DATA)})
    device = Device(address, inbox)
    with closing(device.link):
        device.sender = Sender(OFFER.manifest, os.urandom(len(DATA)))
        inbox.open(AGENT, OFFER, 0.0)

        def is_refused() -> bool:
            device.turn()
            try:
                return turn(inbox, pool) is not None
            except Refused as error:
                return "starts over" in str(error)

        eventually(is_refused)
    assert inbox.load == (1, 0)


def test_a_worker_that_hangs_does_not_block_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The orders are more than the pipe to the worker takes."""
    monkeypatch.setattr(worker_pool, "SILENCE", 1.0)
    with closing(WorkerPool(WorkerSettings(1, "mqtt://127.0.0.1:1", RUN), 1, sync=False)) as pool:
        (hanging,) = pool.pids
        os.kill(hanging, signal.SIGSTOP)
        for number in range(200):
            pool.send(AGENT, worker_messages.Drop(number, "x" * 1024))

        def is_replaced() -> bool:
            list(pool.take_reports())
            return bool(pool.pids) and pool.pids != [hanging]

        eventually(is_replaced)


@pytest.mark.skipif(os.name == "nt", reason="no standby takes a lock away on Windows")
def test_the_workers_of_a_coordinator_that_hangs_end_when_another_takes_over(
    address: str, tmp_path: Path
) -> None:
    """A broker that speaks MQTT 3.1.1 does not tell them. The workers of both coordinators have the
    same names and write the same files.
    """
    lock = run_lock.acquire(tmp_path)
    with closing(WorkerPool(WorkerSettings(2, address, RUN), 1, sync=True, lock=tmp_path)) as pool:
        first = {one._process for one in pool._workers}
        time.sleep(2 * LOOK)
        assert not any(one.poll() for one in first if one is not None), "they end"
        successor = run_lock.replace(tmp_path)
        # nobody takes the pool's reports, as in a coordinator that hangs
        eventually(lambda: all(one is not None and one.poll() == 0 for one in first))
    for handle in (lock, successor):
        run_lock.release(handle)
