"""Simulated devices: participants of the real protocol on links in memory, their tasks done by
worker processes.

A device holds its part of a partition, exactly as `edge-agent join --shard I/N --partition RULE
--seed S` would, trains with one thread, and claims a speed instead of measuring one. One thread
speaks for all devices; as many processes train as there are processors.
"""

from __future__ import annotations

import queue
import signal
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

from coordinator.fleet.fleet import Fleet
from coordinator.settings.config import Config
from coordinator.simulate.data_source import Source, names
from coordinator.simulate.workers import VAST, Workers, outcome
from federated.device.participant import Equipment, Participant
from federated.device.spool import Spool
from federated.device.task_runner import Outcome
from federated.device.trainers.catalogue import open_trainer
from federated.task import CODECS, Card, Profile, Task, Timing
from federated.wire import envelope, messages, topics
from federated.wire.codecs.catalogue import codec_names
from federated.wire.link import CHUNK
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.cost import cost

__all__ = ["Devices"]

RATE = 1e10  # multiply-adds per second of a device of speed 1
SESSION = "simulated"
SWEEP = 3.0  # seconds between looks at devices that nothing happened to: their heartbeats are due
CACHED = 64  # downloads kept for all devices together: more than one round and one evaluation need
NOBODY = -1


@dataclass
class Pooled:
    """One device's task runner: its tasks wait for a worker. call: called when one is done.
    delay: least seconds of a training.
    """

    workers: Workers
    index: int
    call: Callable[[], None]
    delay: float = 0.0
    progress: tuple[int, int] = (0, 0)
    present: tuple[Task, Path, Future[float]] | None = None
    until: float = 0.0

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        future = self.workers.begin(self.index, task, weights, result)
        self.present, self.until = (
            (task, result, future),
            time.monotonic() + (self.delay if task.work == "train" else 0.0),
        )
        future.add_done_callback(lambda _: self._done())

    def _done(self) -> None:
        """Told by a worker: the device has its update once it would have been so far itself."""
        left = self.until - time.monotonic()
        if left > 0:
            timer = threading.Timer(left, self.call)
            timer.daemon = True
            timer.start()
        else:
            self.call()

    def poll(self) -> Outcome | None:
        if self.present is None or not self.present[2].done() or time.monotonic() < self.until:
            return None
        (task, result, future), self.present = self.present, None
        found = outcome(future)
        return (
            Outcome(task, None, found)
            if isinstance(found, str)
            else Outcome(task, result, loss=found)
        )

    def cancel(self) -> None:
        if self.present is not None:
            self.present[2].cancel()
            self.present = None


class Devices:
    """All devices of a simulation: `begin` when the run is known, `close` when it is over. error:
    what stopped them, if something did.
    """

    def __init__(self, broker: MemoryBroker, config: Config, source: Source, folder: Path) -> None:
        self.source, self.config, self.folder = source, config, folder
        self.error: BaseException | None = None
        self._broker = broker
        # says what the devices are able to; workers train
        self._trainer = open_trainer(config.simulate.trainer, config.simulate.device)
        self._workers = Workers(source, config)
        self._stop = threading.Event()
        self._calls = queue.SimpleQueue[int]()  # devices to which something happened, by index
        self._thread: threading.Thread | None = None
        self._weights: OrderedDict[str, Path] = OrderedDict()

    def begin(self, fleet: Fleet) -> None:
        """Joins the fleet's run, in a thread of its own; whatever stops it also ends the
        coordinator's link.
        """

        def live() -> None:
            # the workers inherit it: ctrl-C is not for them
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._live(fleet.run)
            except BaseException as error:
                self.error = error
                if isinstance(fleet.link, MemoryLink):
                    fleet.link.kill()

        self._thread = threading.Thread(target=live, name="devices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._workers.stop()
        self._calls.put(NOBODY)
        if self._thread is not None:
            self._thread.join()
        self._workers.close()

    def _live(self, run: messages.Run) -> None:
        """Until each has left the run, or nobody wants them any more."""
        agents = names(self.source.agents)
        surveys = self._workers.survey(len(agents), run) if run.menu else repeat(dict[str, Any]())
        present = {
            index: self._member(run, index, name, survey)
            for index, (name, survey) in enumerate(zip(agents, surveys, strict=False))
        }
        for participant, _ in present.values():
            participant.join()
        due = time.monotonic() + SWEEP
        while present and not self._stop.is_set():
            called = self._called(due)
            if not called:  # nothing happened, or too much to look at the others
                called, due = tuple(present), time.monotonic() + SWEEP
            for index in called:
                if index in present and not attend(*present[index]):
                    del present[index]

    def _called(self, due: float) -> Sequence[int]:
        """The device to which something happened next; none when it is time to look at all of
        them.
        """
        try:
            left = due - time.monotonic()
            return (self._calls.get(timeout=left),) if left > 0 else ()
        except queue.Empty:
            return ()

    def _member(
        self, run: messages.Run, index: int, name: str, survey: dict[str, Any]
    ) -> tuple[Participant, MemoryLink]:
        will = topics.status(run.run, name), envelope.encode(messages.Status(name, SESSION, False))
        call = partial(self._calls.put, index)
        runner = Pooled(
            self._workers,
            index,
            call,
            share(self.config.simulate.delays, index, self.source.agents)
            if self.config.simulate.delays
            else 0.0,
        )
        link = MemoryLink(self._broker, name, will, arrived=call)
        link.subscribe(topics.run(run.run))
        data = self.source.device(index).card()
        measure = partial(self._claim, index, name, data, survey)
        spool = Spool(self.folder / name)
        return Participant(
            link,
            run,
            name,
            SESSION,
            Equipment(measure, runner, spool, weights=self._weights, cached=CACHED),
        ), link

    def _claim(
        self, index: int, name: str, data: Card, survey: dict[str, Any], run: messages.Run
    ) -> Profile:
        """What a device of this speed would have measured."""
        speed = share(self.config.simulate.speeds, index, self.source.agents)
        timings = tuple(
            Timing(s, run.batch, cost(s).macs * run.batch / (speed * RATE)) for s in run.calibration
        )
        return Profile(
            name,
            "simulation",
            f"speed {speed:g}",
            speed,
            VAST,
            1e12,
            CHUNK,
            self._trainer.runtime,
            data,
            timings,
            survey,
            codecs=codec_names()[:CODECS],
            capabilities=tuple(sorted(self._trainer.capabilities)),
        )


def share(values: Sequence[float], index: int, agents: int) -> float:
    """A device's of values that equal shares of the devices have, in order."""
    return values[index * len(values) // agents]


def attend(participant: Participant, link: MemoryLink) -> bool:
    """All that is due at a device; False once it has left the run."""
    while participant.turn(0.0) and link.backlog:
        pass
    if participant.over:
        participant.leave()
    return not participant.over
