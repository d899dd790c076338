"""The processes of a simulation that train: each does whole tasks, from file to file, with one
thread.

They end with the process that started them, however it ends; ctrl-C is that one's business, not
theirs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from coordinator.settings.config import Config
from coordinator.simulate.data_source import Source
from federated.data.dataset import Dataset
from federated.device.task_work import carry_out
from federated.device.trainers.catalogue import open_trainer
from federated.device.trainers.trainer import Trainer
from federated.errors import EspalierError
from federated.methods.catalogue import method as find_method
from federated.task import Task
from federated.training.execution import Execution
from federated.wire.codecs.catalogue import find_codec
from federated.wire.messages import Run

__all__ = ["VAST", "Workers", "outcome"]

VAST = 2**40  # bytes: nothing that one machine simulates is too large for a device
# each has a context on the GPU, of some 500 MB; of ResNet-18, more than four trained little faster
ON_GPU = 4
BROKEN = (
    "a worker process was ended from outside, perhaps for want of memory: go on with --resume, "
    "and fewer --workers"
)


class Workers:
    """A pool of worker processes, `simulate.workers` of them; 0 means one per processor, on a GPU
    ON_GPU at most. source: of the data that they learn from.
    """

    def __init__(self, source: Source, config: Config) -> None:
        processors, device = len(os.sched_getaffinity(0)), config.simulate.device
        several = config.simulate.workers or (
            min(ON_GPU, processors) if device == "cuda" else processors
        )
        context = beginning()
        # no lock in it, which a worker that is killed could keep
        self._stopped = context.RawValue(ctypes.c_bool, False)
        self._pool = ProcessPoolExecutor(
            several,
            mp_context=context,
            initializer=settle,
            initargs=(blank(source), config, self._stopped),
        )

    def begin(self, index: int, task: Task, weights: Path, result: Path) -> Future[float]:
        """Does a device's task as soon as a worker is free; its future loss, NaN where the task has
        none. Raises EspalierError after a death.
        """
        try:
            return self._pool.submit(work, index, task, weights, result)
        except BrokenProcessPool:
            raise EspalierError(BROKEN) from None

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        """What the run's method asks of each device that joins, in their order, as the workers find
        it; nothing of those whom `stop` came before.

        Raises EspalierError where a worker died.
        """
        try:
            yield from self._pool.map(look, range(devices), repeat(run))
        except BrokenProcessPool:
            raise EspalierError(BROKEN) from None

    def stop(self) -> None:
        """Has what is being done stop, between two steps."""
        self._stopped.value = True

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


def beginning() -> SpawnContext | ForkServerContext:
    """How they start: where forking is safe, each as a copy of one process that has loaded PyTorch,
    which takes seconds and much memory.

    That process is this one's child, and loads nothing but code, so that a copy of it has no
    thread's lock held, nor anything of a GPU. It begins to at once, while this one prepares the
    run.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # that one, PyTorch loads with the first step of an optimiser
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    # which it inherits: ctrl-C is not for it, nor for the workers
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def outcome(done: Future[float]) -> float | str:
    """The loss, or why there is none. Raises EspalierError where a worker died: that is nothing
    that a device did.
    """
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        raise EspalierError(BROKEN)
    return done.result() if error is None else f"{type(error).__name__}: {error}"


def blank(source: Source) -> Source:
    """The same without what it has loaded: each worker loads that itself, once, instead of being
    sent it.
    """
    return replace(source)


# ---- in the workers ------------------------------------------------------------------------------

SOURCE: Source
TRAINER: Trainer
STOPPED: Any  # shared with the process that started this one


def settle(source: Source, config: Config, stopped: Any) -> None:
    """Load what the configuration names, and limit this process to one thread: the processes share
    the processors, and sums come out as on a device with one.
    """
    global SOURCE, STOPPED, TRAINER
    find_method(config.method_name)
    find_codec(config.wire.codec)
    SOURCE, STOPPED = source, stopped
    TRAINER = open_trainer(config.simulate.trainer, config.simulate.device)
    TRAINER.use_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A parent that was killed cannot say so, and its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=64)
def holding(index: int) -> Dataset:
    """A device's data, kept for its next task."""
    return SOURCE.device(index)


def work(index: int, task: Task, weights: Path, result: Path) -> float:
    """Does a device's task from file to file; the loss, NaN where the task has none."""
    execution = Execution(stop=lambda: bool(STOPPED.value))
    return carry_out(TRAINER, task, weights, result, holding(index), execution)


def look(index: int, run: Run) -> dict[str, Any]:
    """A device's survey; none once the simulation was stopped."""
    return {} if STOPPED.value else TRAINER.survey(run, holding(index), VAST)
