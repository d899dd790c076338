"""A real `edge-agent join` loses no work if it is started twice, or if its broker crashes.
tests/benchmarks/test_faults.py kills it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from coordinator.fleet.message_loop import MessageLoop
from coordinator.phases.run_context import ENDLESS
from coordinator.store.run_store import Store
from federated.task import Update
from federated.wire import envelope, messages, topics
from federated.wire.links.catalogue import open_link
from tests.support.brokers import is_listening, needs_mosquitto, read_port
from tests.support.memory_federation import RUN, Federation, Member, digits, federate
from tests.support.processes import AGENT, Running, Start
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE, eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.processes,
    needs_mosquitto,
]
JOIN = [
    *AGENT,
    "join",
    "--run",
    RUN,
    "--name",
    "a0",
    "--data",
    "digits",
    "--shard",
    "0/2",
]
SETTINGS = {
    "model.name": "preresnet-10",  # of half the width: an update of 4.9 MB
    "method.name": "fedavg",
    "method.widths": [0.5],
    "method.depths": [4],
    "train.steps": 1,
    "train.batch": 4,
    "evaluate.devices": False,
    "fleet.min_agents": 2,
    "fleet.wait": 120.0,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path / "broker") as started:
        yield started


class Spy:
    """Count the chunks of updates at the broker."""

    def __init__(self, address: str) -> None:
        self.seen = set[tuple[str, int]]()
        self.link = open_link(address, "spy")
        self.link.subscribe(f"{topics.ROOT}/{RUN}/agent/a0/up/+/c/+")
        self._going = True
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while self._going:
            delivery = self.link.receive(0.1)
            if delivery is not None and delivery.payload and not delivery.topic.startswith("$"):
                chunk = envelope.decode(delivery.payload)
                assert isinstance(chunk, messages.Chunk)
                self.seen.add((chunk.transfer, chunk.index))

    def close(self) -> None:
        self._going = False
        self._thread.join()
        self.link.close()


class Stage:
    """A coordinator in a thread, with a second agent that keeps the round open until the update of
    the agent under test has arrived.
    """

    def __init__(self, folder: Path, address: str, start: Start) -> None:
        self.folder, self.address, self.start = folder, address, start
        self.fleets: list[MessageLoop] = []
        self.done: Federation | None = None
        self.going = threading.Event()  # whether the round may end
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        def patient(update: Update) -> Update:
            assert self.going.wait(90)
            eventually(
                lambda: any(
                    state.came for state in self.fleets[0].tasks if state.task.agent == "a0"
                )
            )
            return update

        other = Member("a1", digits(1, 2), change=patient)
        # No lease expires while the test delays the round.
        self.done = federate(
            self.folder,
            [other],
            SETTINGS,
            broker=self.address,
            watch=self.fleets.append,
            patience=ENDLESS,
        )

    def join(self, port: int, spool: str = "spool") -> Running:
        where = ["--broker", f"127.0.0.1:{port}", "--spool", str(self.folder / spool)]
        return self.start(*JOIN, *where, "--format", "json")

    def read_messages(self, number: int) -> str:
        return (self.folder / f"{number}.err").read_text()

    def end(self) -> dict[str, str]:
        """Wait for the end of the run, and return the outcome of each agent's task in round 1."""
        self._thread.join(120)
        assert self.done is not None
        store = Store.open(self.folder / "runs", RUN, read_only=True)
        try:
            return {entry.agent: entry.outcome for entry in store.read_entries(1)}
        finally:
            store.close()


@pytest.fixture
def stage(tmp_path: Path, broker: Broker, start: Start) -> Stage:
    return Stage(tmp_path, broker.address, start)


@pytest.mark.slow
def test_a_second_agent_with_the_same_name_and_spool_exits_and_the_first_stays(
    stage: Stage, broker: Broker
) -> None:
    first = stage.join(read_port(broker))
    eventually(lambda: "joined run" in stage.read_messages(0))
    second = stage.join(read_port(broker))
    assert second.wait(PATIENCE) == 7
    stage.going.set()
    assert (
        "in use by another agent of this name: give each agent its own --name, or its own --spool"
        in stage.read_messages(1)
    )
    assert stage.end() == {"a0": "folded", "a1": "folded"}
    out, _ = first.communicate(timeout=PATIENCE)
    assert json.loads(out.splitlines()[-1])["updates"] == 1


@pytest.mark.slow
def test_of_two_agents_with_one_name_one_leaves_with_a_reason_and_the_others_update_is_folded(
    stage: Stage, broker: Broker
) -> None:
    """With separate spools, neither sees the other's lock. The broker disconnects the first, which
    may miss the reason, reconnect, and displace the second.
    """
    slow = Proxy(read_port(broker), 1.2e6)
    try:
        both = [stage.join(slow.port)]
        eventually(lambda: bool(list(stage.folder.glob("spool/*/a0/*.task"))))
        slow.rate = 0.2e6
        both.append(stage.join(read_port(broker), "elsewhere"))
        eventually(lambda: any(process.poll() is not None for process in both))
        slow.rate = 20e6
        gone = 0 if both[0].poll() is not None else 1
        assert both[gone].returncode in (5, 6)
        assert "(--name)" in stage.read_messages(gone)
        stage.going.set()
        assert stage.end() == {"a0": "folded", "a1": "folded"}
        out, _ = both[1 - gone].communicate(timeout=PATIENCE)
        assert json.loads(out.splitlines()[-1])["reason"] == "the run is over"
    finally:
        slow.close()


@pytest.mark.slow
def test_no_training_is_repeated_if_the_broker_crashes_during_uploads(tmp_path: Path) -> None:
    """A new broker without its state replaces it; coordinator and agents reconnect, and each agent
    trains once.
    """
    trained: list[str] = []

    def note(update: Update) -> Update:
        trained.append(update.agent)
        return update

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(
            brokers.start(port=0, kind="mosquitto", directory=tmp_path / "first")
        )
        slow = stack.enter_context(contextlib.closing(Proxy(read_port(first), 4e6)))
        spy = stack.enter_context(contextlib.closing(Spy(first.address)))

        def die() -> None:
            eventually(lambda: len(spy.seen) >= 5)
            os.killpg(first._process.pid, signal.SIGKILL)
            eventually(lambda: not is_listening(first.address))  # the port is freed after a moment
            stack.enter_context(
                brokers.start(
                    port=read_port(first), kind="mosquitto", directory=tmp_path / "second"
                )
            )

        death = threading.Thread(target=die, daemon=True)
        death.start()
        members = [Member(f"a{i}", digits(i, 2), change=note) for i in range(2)]
        done = federate(
            tmp_path, members, SETTINGS, broker=f"127.0.0.1:{slow.port}", patience=ENDLESS
        )
        death.join(60)
        assert not death.is_alive()
    assert sorted(trained) == ["a0", "a1"]
    assert all(member.error is None for member in done.members.values())
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    assert {entry.agent: entry.outcome for entry in store.read_entries(1)} == {
        "a0": "folded",
        "a1": "folded",
    }
    store.close()
