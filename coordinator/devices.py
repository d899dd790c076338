"""Simulated devices: participants of the real protocol on links in memory, their tasks done by worker processes.

A device holds its part of a partition, exactly as `edge-agent join --shard I/N --partition RULE --seed S` would, trains with one thread, and
claims a speed instead of measuring one. One thread speaks for all devices; as many processes train as there are processors.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
import torch

from coordinator.config import Config
from coordinator.fleet import Fleet
from federated.data import catalogue
from federated.data.dataset import Dataset, Indices
from federated.data.partitions import parse
from federated.local import perform
from federated.participant import Outcome, Participant
from federated.task import Card, Profile, Task, Timing
from federated.wire import messages, tensors, topics
from federated.wire.link import CHUNK
from federated.wire.memory import MemoryBroker, MemoryLink
from models.cost import cost

__all__ = ["Devices", "Source", "names"]

log = logging.getLogger(__name__)

RATE = 1e10  # multiply-adds per second of a device of speed 1
MEMORY = 2**40  # bytes: nothing that one machine simulates is too large for a device
SESSION = "simulated"
SWEEP = 1.0  # seconds between looks at devices that nobody spoke to: their heartbeats are due
CACHED = 64  # downloads kept for all devices together: more than one round and one evaluation need
PAUSE = 0.002  # seconds when there is nothing to do


def names(agents: int) -> tuple[str, ...]:
    """d0 to d9, or with as many leading zeros as keep the order of names that of numbers."""
    digits = len(str(agents - 1))
    return tuple(f"d{index:0{digits}d}" for index in range(agents))


@dataclass(frozen=True)
class Source:
    """Where the devices' data come from; each process that needs them loads them once."""

    data: str
    root: str | None
    agents: int
    partition: str
    seed: int
    held: float

    @classmethod
    def of(cls, config: Config) -> Source:
        chosen = config.simulate
        return cls(config.data.name, config.data.root, chosen.agents, chosen.partition, config.seed, chosen.held)

    @cached_property
    def whole(self) -> Dataset:
        """All that is shared out, with the coordinator's own part held out."""
        return catalogue.central(self.data, self.root)

    @cached_property
    def parts(self) -> list[Indices]:
        """Each device's examples, its own held-out ones included. Raises DataError where one would be left without."""
        return parse(self.partition)(self.whole, self.agents, np.random.default_rng(self.seed))

    def device(self, index: int) -> Dataset:
        """What one device holds."""
        return catalogue.part(self.whole, self.parts[index], name=names(self.agents)[index], held=self.held)


# ---- in the workers ----------------------------------------------------------------------------------------------------


def settle() -> None:
    """One thread per process: the processes share the processors, and sums come out as on a device with one."""
    torch.set_num_threads(1)


@lru_cache(maxsize=1)
def shop(source: Source) -> Source:
    """The source whose data this process has loaded."""
    return source


@lru_cache(maxsize=64)
def holding(source: Source, index: int) -> Dataset:
    return shop(source).device(index)


def work(source: Source, index: int, task: Task, weights: Path, result: Path, device: str) -> float:
    """Does a device's task from file to file; the loss, NaN where the task has none."""
    _, received = tensors.decode(weights.read_bytes())
    update = perform(task, received, holding(source, index), device=device)
    result.write_bytes(tensors.encode(msgspec.to_builtins(replace(update, tensors={})), update.tensors))
    return float(update.notes.get("loss", "nan"))


# ---- in the simulation's process ---------------------------------------------------------------------------------------


@dataclass
class Pooled:
    """One device's trainer: its tasks wait for a worker."""

    pool: Executor
    source: Source
    index: int
    device: str
    present: tuple[Task, Path, Future[float]] | None = None

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        self.present = task, result, self.pool.submit(work, self.source, self.index, task, weights, result, self.device)

    def poll(self) -> Outcome | None:
        if self.present is None or not self.present[2].done():
            return None
        (task, result, future), self.present = self.present, None
        if (error := future.exception()) is not None:
            return Outcome(task, None, f"{type(error).__name__}: {error}")
        return Outcome(task, result, loss=future.result())

    def cancel(self) -> None:
        if self.present is not None:
            self.present[2].cancel()
            self.present = None


class Devices:
    """All devices of a simulation: `begin` when the run is known, `close` when it is over. error: what stopped them, if something did."""

    def __init__(self, broker: MemoryBroker, config: Config, source: Source, folder: Path) -> None:
        self.source, self.config, self.folder = source, config, folder
        self.error: BaseException | None = None
        self._broker = broker
        self._pool = pool(config.simulate.workers, config.simulate.device)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._weights: OrderedDict[str, Path] = OrderedDict()

    def begin(self, fleet: Fleet) -> None:
        """Joins the fleet's run, in a thread of its own; whatever stops it also ends the coordinator's link."""

        def live() -> None:
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
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _live(self, run: messages.Run) -> None:
        """Until each has left the run, or nobody wants them any more."""
        present = [self._member(run, index, name) for index, name in enumerate(names(self.source.agents))]
        for participant, _ in present:
            participant.join()
        swept = time.monotonic()
        while present and not self._stop.is_set():
            now = time.monotonic()
            everyone = now - swept > SWEEP
            swept = now if everyone else swept
            for participant, link in present:
                if everyone or link.waiting or participant.state != "idle":
                    while participant.turn(0.0) and link.waiting:
                        pass
                    if participant.over:
                        participant.leave()
            present = [(participant, link) for participant, link in present if not participant.over]
            if not any(link.waiting for _, link in present):
                time.sleep(PAUSE)

    def _member(self, run: messages.Run, index: int, name: str) -> tuple[Participant, MemoryLink]:
        will = topics.status(run.run, name), messages.encode(messages.Status(name, SESSION, False))
        trainer = Pooled(self._pool, self.source, index, self.config.simulate.device)
        link = MemoryLink(self._broker, name, will)
        link.subscribe(topics.run(run.run))
        data = self.source.device(index).card()
        measure = partial(self._claim, index, name, data)
        spool = self.folder / name
        return Participant(link, run, name, measure, trainer, spool, session=SESSION, weights=self._weights, cached=CACHED), link

    def _claim(self, index: int, name: str, data: Card, run: messages.Run) -> Profile:
        """What a device of this speed would have measured."""
        speed = self.config.simulate.speeds[index * len(self.config.simulate.speeds) // self.source.agents]
        timings = tuple(Timing(s, run.batch, cost(s).macs * run.batch / (speed * RATE)) for s in run.calibration)
        runtime = f"torch {torch.__version__} {self.config.simulate.device}"
        return Profile(name, "simulation", f"speed {speed:g}", speed, MEMORY, 1e12, CHUNK, runtime, data, timings)


def pool(workers: int, device: str) -> Executor:
    """Processes that train; with a GPU, one unless more are asked for."""
    several = workers or (1 if device == "cuda" else len(os.sched_getaffinity(0)))
    return ProcessPoolExecutor(several, mp_context=get_context("spawn"), initializer=settle)
