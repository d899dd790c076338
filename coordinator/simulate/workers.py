"""Execute the tasks of simulated devices. Each worker executes whole tasks, from file to file, with
one thread: in the thread that begins it, or in a thread of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from coordinator.settings.config import Config
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.malicious_devices import choose_malicious
from federated.device.attacks.known_attacks import parse_attack
from federated.device.attacks.malicious_trainer import make_malicious
from federated.device.task_execution import carry_out
from federated.device.trainers.catalogue import open_trainer
from federated.errors import ConfigError, EspalierError
from federated.methods.catalogue import find_method
from federated.task import Task
from federated.training.training_inputs import Execution
from federated.wire.codecs.catalogue import find_codec
from federated.wire.messages import Run
from models.extension_lookup import import_member
from models.families.catalogue import parse
from models.given_objects import OBJECTS, is_given, strip_module
from models.user_networks.library_networks import find_builder

__all__ = [
    "BROKEN",
    "UNLIMITED",
    "OwnThread",
    "ThreadPool",
    "Worker",
    "WorkerDied",
    "Workers",
    "list_given_objects",
    "load_extensions",
    "read_outcome",
]

UNLIMITED = 2**40  # bytes of memory of a simulated device
NOT_SENT = (
    "a network, method or data set of this program cannot be sent to other processes: define it "
    "in a module that they can import, or train in this process (Simulation(processes=False))"
)


BROKEN = (
    "a worker process was killed, perhaps because memory ran out: resume the run with fewer worker "
    "processes (simulate.workers)"
)


class WorkerDied(EspalierError):
    """A worker ended before its task: not a failure of the device."""


class Workers(Protocol):
    """Executes the work of devices."""

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        """Execute a device's task as soon as a worker is free. Return its future loss, NaN for
        other work. Raises EspalierError if a worker died.
        """

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        """Return the surveys of all devices, in order; empty ones after `stop`. Raises
        EspalierError if a worker died.
        """

    def stop(self) -> None:
        """Stop running tasks at their next step."""

    def close(self) -> None: ...


class SingleWorker(Protocol):
    """Executes one task at a time."""

    def run_task(self, index: int, task: Task, weights: Path, result: Path) -> float:
        """Execute a device's task from file to file. Return the loss, NaN for other work."""

    def survey_device(self, index: int, run: Run) -> dict[str, Any]:
        """Return a device's survey; empty after a stop."""


class Worker:
    """Executes tasks with one thread, since sums then equal those of a device with one thread.

    stopped: returns whether to stop at the next step.
    """

    def __init__(self, source: DataSource, config: Config, stopped: Callable[[], bool]) -> None:
        self.stopped = stopped
        self._trainer = open_trainer(config.simulate.trainer, config.simulate.device)
        self._trainer.use_threads(1)
        self._malicious = choose_malicious(config)
        self._attacking = make_malicious(self._trainer, parse_attack(config.simulate.attack))
        self._load = lru_cache(maxsize=64)(source.device)  # a device's data, for its next task

    def run_task(self, index: int, task: Task, weights: Path, result: Path) -> float:
        """Execute a device's task from file to file. Return the loss, NaN for other work."""
        trainer = self._attacking if index in self._malicious else self._trainer
        execution = Execution(stop=self.stopped)
        return carry_out(trainer, task, weights, result, self._load(index), execution)

    def survey_device(self, index: int, run: Run) -> dict[str, Any]:
        """Return a device's survey; empty after a stop."""
        return {} if self.stopped() else self._trainer.survey(run, self._load(index), UNLIMITED)


class OwnThread:
    """`Workers` that execute each task at once, in the thread that begins it."""

    def __init__(self, source: DataSource, config: Config, stopped: Event) -> None:
        self._stopped = stopped
        self._worker = Worker(source, config, stopped.is_set)

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        done = Future[float]()
        try:
            done.set_result(self._worker.run_task(index, task, weights, result))
        except Exception as error:  # any error in training is a failure of the task
            done.set_exception(error)
        return done

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        return (self._worker.survey_device(index, run) for index in range(devices))

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.stop()


class ThreadPool:
    """`Workers` with a thread of this process each.

    count: number of workers
    open_worker: returns the worker of a thread
    """

    def __init__(self, count: int, open_worker: Callable[[], SingleWorker]) -> None:
        self.stopped, self._own = Event(), threading.local()

        def set_up() -> None:
            self._own.worker = open_worker()

        self._pool = ThreadPoolExecutor(count, "worker", initializer=set_up)

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        return self._pool.submit(lambda: self._own.worker.run_task(index, task, weights, result))

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        return self._pool.map(
            lambda index: self._own.worker.survey_device(index, run), range(devices)
        )

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


def read_outcome(done: Future[float]) -> float | str:
    """Return the loss, or the reason of a failure. Raises EspalierError if the worker died, since
    that is not the device's failure.
    """
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        raise WorkerDied(BROKEN)
    if isinstance(error, WorkerDied):
        raise error
    return done.result() if error is None else f"{type(error).__name__}: {error}"


def load_extensions(config: Config, given: Mapping[str, Any]) -> None:
    """Load what a configuration names in the process of a worker. given: see
    `list_given_objects`. Raises ValueError for a network of the user's own that cannot be imported.
    """
    OBJECTS.update(given)
    model = config.model.name
    own = ":" in model and not is_given(model) and not find_builder(model)
    if own and parse(model) == (model, ""):  # not a family
        import_member(model)
    find_method(config.method_name)
    for codec in config.wire.codecs:
        find_codec(codec)


def list_given_objects(config: Config) -> dict[str, Any]:
    """Return the objects of `models.given_objects` that a configuration names. Raises ConfigError
    for one that another process cannot have.
    """
    names = (config.method_name, config.model.name, config.data.name)
    labels = [strip_module(name) for name in names if is_given(name)]
    found = {label: OBJECTS[label] for label in labels}
    try:
        sent = ForkingPickler.dumps(found)
    except Exception as error:  # classes of the user can raise anything
        raise ConfigError(f"{NOT_SENT} ({type(error).__name__}: {error})") from error
    main = sys.modules["__main__"]
    if b"__main__" in bytes(sent) and not hasattr(main, "__file__"):
        raise ConfigError(NOT_SENT)
    return found
