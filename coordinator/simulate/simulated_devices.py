"""Simulate devices that speak the real protocol over links in memory and train in worker processes.

A device holds its part of a partition, as with `edge-agent join --shard I/N --partition RULE --seed
S`, trains with one thread, and claims a speed instead of measuring one. One thread sends and
receives for all devices while worker processes train; or everything happens in the coordinator's
thread, while its link waits.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from coordinator.fleet.message_loop import MessageLoop
from coordinator.settings.config import Config
from coordinator.simulate.device_data import SIMULATED, DataSource, name_devices
from coordinator.simulate.local_transfers import SharedFolder
from coordinator.simulate.malicious_devices import choose_malicious
from coordinator.simulate.workers import UNLIMITED, Workers, read_outcome
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.task_runner_interface import Outcome
from federated.device.trainers.catalogue import open_trainer
from federated.errors import FleetError
from federated.system.child_processes import block_interrupts
from federated.task import MAX_CODECS, Card, Profile, Task, Timing
from federated.wire import envelope, messages, topics
from federated.wire.codecs.catalogue import codec_names
from federated.wire.codecs.weights import list_weights_codecs
from federated.wire.link import CHUNK, Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.cost import cost

__all__ = ["Devices", "PooledRunner", "ServingLink"]

RATE = 1e10  # multiply-adds per second of a device of speed 1
SESSION = "simulated"
SWEEP = 3.0  # seconds between turns of idle devices, which send heartbeats
WAKE = -1  # in place of a device's index


@dataclass
class PooledRunner:
    """A device's task runner, with tasks that wait for a worker.

    workers: the pool that executes tasks.
    index: of the device.
    notify: called when a task is done.
    delay: minimum seconds of a training.
    progress: finished and planned steps, which workers do not report.
    present: current task, file of its result, and its future loss.
    until: time before which the current task does not count as done.
    """

    workers: Workers
    index: int
    notify: Callable[[], None]
    delay: float = 0.0
    progress: tuple[int, int] = (0, 0)
    present: tuple[Task, Path, Future[float]] | None = None
    until: float = 0.0

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        future = self.workers.begin(self.index, task, weights, result)
        self.present = task, result, future
        self.until = time.monotonic() + (self.delay if task.work == "train" else 0.0)
        if not self.done:  # else the device looks at it in the same turn
            future.add_done_callback(lambda _: self._finish())

    @property
    def done(self) -> bool:
        """True if the current task is done and the delay is over."""
        return (
            self.present is not None and self.present[2].done() and time.monotonic() >= self.until
        )

    def _finish(self) -> None:
        """Notify the device once its task is done and the delay is over."""
        left = self.until - time.monotonic()
        if left <= 0:
            self.notify()
            return
        timer = threading.Timer(left, self.notify)
        timer.daemon = True
        timer.start()

    def poll(self) -> Outcome | None:
        if self.present is None or not self.done:
            return None
        (task, result, future), self.present = self.present, None
        found = read_outcome(future)
        if isinstance(found, str):
            return Outcome(task, None, found)
        return Outcome(task, result, loss=found)

    def cancel(self) -> None:
        if self.present is not None:
            self.present[2].cancel()
            self.present = None


class Devices:
    """All devices of a simulation. Call `join` when the run is known, then `turn` until the run is
    over, or `begin` to do both in a thread; then `close`.

    error: the error that stopped the thread, if any.
    weights: files of published weights by digest (see `LocalTransfers`).
    """

    def __init__(
        self, broker: MemoryBroker, config: Config, source: DataSource, workers: Workers
    ) -> None:
        self.source, self.config = source, config
        self.error: BaseException | None = None
        self._broker = broker
        # only tells the devices' capabilities; workers train
        self._trainer = open_trainer(config.simulate.trainer, config.simulate.device)
        self._malicious = choose_malicious(config)
        self._workers = workers
        self._stop = threading.Event()
        self._calls = queue.SimpleQueue[int]()  # indices of devices with news
        self._called = set[int]()  # those of them that wait
        self._thread: threading.Thread | None = None
        self.weights: OrderedDict[str, Path] = OrderedDict()
        self._present: dict[int, tuple[AgentEventLoop, MemoryLink, PooledRunner]] = {}  # by index
        self._due = 0.0  # time of the next turn of idle devices

    def begin(self, fleet: MessageLoop, folder: Path) -> None:
        """Join the fleet's run in a thread. An error in it also ends the coordinator's link."""

        def run() -> None:
            try:
                with block_interrupts():  # also of the workers
                    self.join(fleet.run, folder)
                    while self._present and not self._stop.is_set():
                        self.turn(math.inf)
            except BaseException as error:
                self.error = error
                if isinstance(fleet.link, MemoryLink):
                    fleet.link.kill()

        self._thread = threading.Thread(target=run, name="devices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._workers.stop()
        self._calls.put(WAKE)
        if self._thread is not None:
            self._thread.join()
        self._workers.close()

    def _call(self, index: int) -> None:
        """Schedule a call of a device, in which it handles all that arrived for it."""
        if index not in self._called:
            self._called.add(index)
            self._calls.put(index)

    def join(self, run: messages.Run, folder: Path) -> None:
        """Join a run with all devices. folder: of their files."""
        agents = name_devices(self.source.agents)
        surveys = self._workers.survey(len(agents), run) if run.menu else repeat(dict[str, Any]())
        self._present = {
            index: self._make_participant(run, index, survey, Spool(folder / name))
            for index, (name, survey) in enumerate(zip(agents, surveys, strict=False))
        }
        for participant, *_ in self._present.values():
            participant.join()
        self._due = time.monotonic() + SWEEP

    def turn(self, timeout: float) -> bool:
        """Handle all that is due at one device, or at all of them now and then; wait for news for
        at most `timeout` seconds. Return whether anything was due. Raises FleetError if the
        coordinator refuses a device: a simulation requires all of them.
        """
        left = max(0.0, self._due - time.monotonic())
        try:
            devices = [self._calls.get(timeout=min(timeout, left))]
        except queue.Empty:
            devices = []
        if time.monotonic() >= self._due:  # also if there is news of other devices all the time
            devices, self._due = list(self._present), time.monotonic() + SWEEP
        for index in devices:
            self._called.discard(index)  # before it looks: later news call it again
            if index in self._present and not serve_device(*self._present[index]):
                gone, *_ = self._present.pop(index)
                if gone.state.refused:
                    raise FleetError(f"the run cannot use {gone.state.name}: {gone.state.over}")
        return bool(devices)

    def _make_participant(
        self, run: messages.Run, index: int, survey: dict[str, Any], spool: Spool
    ) -> tuple[AgentEventLoop, MemoryLink, PooledRunner]:
        name = name_devices(self.source.agents)[index]
        will = topics.status(run.run, name), envelope.encode(messages.Status(name, SESSION, False))
        notify = partial(self._call, index)
        delays = self.config.simulate.delays or (0.0,)
        delay = pick_value(delays, index, self.source.agents)
        runner = PooledRunner(self._workers, index, notify, delay)
        link = MemoryLink(self._broker, name, will, arrived=notify)
        link.subscribe(topics.run(run.run))
        data = self.source.device(index).card()
        measure = partial(self._make_profile, index, name, data, survey)
        equipment = Equipment(measure, runner, spool, weights=self.weights, http=SharedFolder())
        return AgentEventLoop(link, run, name, SESSION, equipment), link, runner

    def _make_profile(
        self, index: int, name: str, data: Card, survey: dict[str, Any], run: messages.Run
    ) -> Profile:
        """Return the profile that a device of the configured speed would measure; a malicious one
        claims the highest speed.
        """
        speeds = self.config.simulate.speeds
        speed = pick_value(speeds, index, self.source.agents)
        speed = max(speeds) if index in self._malicious else speed
        watts = self.config.simulate.watts or (0.0,)
        timings = tuple(
            Timing(s, run.batch, cost(s).macs * run.batch / (speed * RATE)) for s in run.calibration
        )
        return Profile(
            name,
            SIMULATED,
            f"speed {speed:g}",
            speed,
            UNLIMITED,
            1e12,
            CHUNK,
            self._trainer.runtime,
            data,
            timings,
            survey,
            codecs=codec_names()[:MAX_CODECS],
            weights_codecs=list_weights_codecs(),
            capabilities=tuple(sorted(self._trainer.capabilities)),
            watts=pick_value(watts, index, self.source.agents),
            protocol=envelope.PROTOCOL,
        )


class ServingLink(MemoryLink):
    """The coordinator's link of a simulation in one thread: while it waits, the devices work.

    serve: handles what is due at a device, waits for at most the given number of seconds, and
        returns whether anything was due.
    """

    def __init__(self, broker: MemoryBroker, name: str, serve: Callable[[float], bool]) -> None:
        super().__init__(broker, name)
        self._serve = serve

    def receive(self, timeout: float) -> Delivery | None:
        while not self.backlog and self._serve(timeout):
            timeout = 0.0
        return super().receive(0.0)


def pick_value(values: Sequence[float], index: int, agents: int) -> float:
    """Return a device's value. Equal shares of the devices have the values in order."""
    return values[index * len(values) // agents]


def serve_device(participant: AgentEventLoop, link: MemoryLink, runner: PooledRunner) -> bool:
    """Handle all that is due at a device. Return False once it has left the run."""
    while participant.turn(0.0) and (link.backlog or runner.done):
        pass
    if participant.state.over:
        participant.leave()
    return not participant.state.over
