"""Execute the tasks of simulated devices in worker processes, or on a GPU in worker threads. Each
worker executes whole tasks, from file to file, with one thread.

The processes end with the process that started them, however it ends, and ignore ctrl-C.
Alternatively, a single worker executes each task in the thread that begins it.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import repeat
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import torch

from coordinator.settings.config import Config
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.malicious_devices import choose_malicious
from federated.device.attacks.known_attacks import parse_attack
from federated.device.attacks.malicious_trainer import make_malicious
from federated.device.task_execution import carry_out
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.errors import ConfigError, EspalierError
from federated.methods.catalogue import find_method
from federated.runtime.torch_import import defer_compiler
from federated.system.child_processes import block_interrupts
from federated.system.processors import list_processors
from federated.task import Task
from federated.training.training_inputs import Execution
from federated.wire.codecs.catalogue import find_codec
from federated.wire.messages import Run
from models.given_objects import OBJECTS, is_given, strip_module

__all__ = [
    "UNLIMITED",
    "OwnThread",
    "ProcessPool",
    "ThreadPool",
    "Workers",
    "open_workers",
    "read_outcome",
]

UNLIMITED = 2**40  # bytes of memory of a simulated device
# ResNet-18 at batch 32 on an H100: 465 steps per second with one thread, 750 with four, 803 with
# eight
MAX_GPU_WORKERS = 4
STREAMS = 32  # that PyTorch has on a GPU; each thread needs one of its own
BROKEN = (
    "a worker process was killed, perhaps because memory ran out: resume the run with fewer worker "
    "processes (simulate.workers)"
)
NOT_SENT = (
    "a network, method or data set of this program cannot be sent to worker processes: define it "
    "in a module that they can import, or train in this process (Simulation(processes=False))"
)


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
    """`Workers` in threads of this process, which compute on the same GPU at the same time.
    Processes would take turns on it. source: data of the devices.

    PyTorch computes with one thread meanwhile, so that sums do not wait for busy processors.
    """

    def __init__(self, source: DataSource, config: Config) -> None:
        self._stopped, self._own, self._before = Event(), threading.local(), torch.get_num_threads()
        torch.set_num_threads(1)

        def open_worker() -> None:
            self._own.worker = Worker(source, config, self._stopped.is_set)

        count = min(count_workers(config), STREAMS)
        self._pool = ThreadPoolExecutor(count, "worker", initializer=open_worker)

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        return self._pool.submit(lambda: self._own.worker.run_task(index, task, weights, result))

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        return self._pool.map(
            lambda index: self._own.worker.survey_device(index, run), range(devices)
        )

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self._before)


class ProcessPool:
    """`Workers` in processes. source: data of the devices."""

    def __init__(self, source: DataSource, config: Config) -> None:
        context = make_process_context()
        # without a lock, which a killed worker could hold forever
        self._stopped = context.RawValue(ctypes.c_bool, False)
        self._pool = ProcessPoolExecutor(
            count_workers(config),
            mp_context=context,
            initializer=initialize_worker,
            initargs=(source, config, self._stopped, list_given_objects(config)),
        )
        if isinstance(context, ForkContext):
            self._fork()

    def _fork(self) -> None:
        """Fork all workers now, before this process has threads."""
        with block_interrupts(), warnings.catch_warnings():
            # the threads that Python warns of are those of BLAS, which restarts them
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pool.submit(os.getpid)

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        try:
            return self._pool.submit(run_task, index, task, weights, result)
        except BrokenProcessPool:
            raise EspalierError(BROKEN) from None

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        try:
            yield from self._pool.map(survey_device, range(devices), repeat(run))
        except BrokenProcessPool:
            raise EspalierError(BROKEN) from None

    def stop(self) -> None:
        self._stopped.value = True

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


def open_workers(source: DataSource, config: Config) -> Workers:
    """Return threads for a GPU, if a training there consists of replays of captured steps; else
    processes, since threads of one process would launch operations one at a time.
    """
    settings, hooks = config.simulate, find_method(config.method_name).hooks
    captured = hooks is None or hooks.plain
    if settings.device == "cuda" and settings.trainer == DEFAULT and captured:
        return ThreadPool(source, config)
    return ProcessPool(source, config)


def count_workers(config: Config) -> int:
    """Return `simulate.workers`; 0 means one per processor, on a GPU at most `MAX_GPU_WORKERS`."""
    processors = len(list_processors())
    if config.simulate.device == "cuda":
        processors = min(MAX_GPU_WORKERS, processors)
    return config.simulate.workers or processors


def make_process_context() -> ForkContext | ForkServerContext | SpawnContext:
    """Return the start method of workers. On Linux, each is a fork of this process, with which it
    shares code and data, or of a server process that has loaded PyTorch. Both save seconds and
    memory.

    The server is a child of this process and only loads code, so that a fork of it holds no locks
    of threads and nothing on a GPU. It starts at once, while this process prepares the run.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    if threading.active_count() == 1 and not torch.cuda.is_available():
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    resource_tracker.ensure_running()  # it would unblock ctrl-C, if the server started it
    with block_interrupts():  # also of its workers
        forkserver.ensure_running()
    return context


def read_outcome(done: Future[float]) -> float | str:
    """Return the loss, or the reason of a failure. Raises EspalierError if the worker died, since
    that is not the device's failure.
    """
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        raise EspalierError(BROKEN)
    return done.result() if error is None else f"{type(error).__name__}: {error}"


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


# ---- in the worker processes ---------------------------------------------------------------------

WORKER: Worker


def initialize_worker(
    source: DataSource, config: Config, stopped: Any, given: dict[str, Any]
) -> None:
    """Load the configured extensions. stopped: shared with the parent process."""
    global WORKER
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has its parent's handler
    gc.freeze()  # a collection would write to the memory that a fork shares
    defer_compiler()
    OBJECTS.update(given)
    find_method(config.method_name)
    for codec in config.wire.codecs:
        find_codec(codec)
    WORKER = Worker(source, config, lambda: bool(stopped.value))
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Exit when the parent is gone: a killed parent cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_task(index: int, task: Task, weights: Path, result: Path) -> float:
    return WORKER.run_task(index, task, weights, result)


def survey_device(index: int, run: Run) -> dict[str, Any]:
    return WORKER.survey_device(index, run)
