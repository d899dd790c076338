"""Execute the tasks of simulated devices in processes.

The processes end with the process that started them, however it ends, and ignore ctrl-C.
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
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import repeat
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

import torch

from coordinator.settings.config import Config
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.workers import (
    BROKEN,
    Worker,
    WorkerDied,
    list_given_objects,
    load_extensions,
)
from federated.runtime.torch_import import defer_compiler
from federated.system.child_processes import block_interrupts
from federated.task import Task
from federated.wire.messages import Run

__all__ = ["ProcessPool"]


class ProcessPool:
    """`Workers` in processes. source: data of the devices. count: of processes."""

    def __init__(self, source: DataSource, config: Config, count: int) -> None:
        context = make_process_context()
        # without a lock, which a killed worker could hold forever
        self._stopped = context.RawValue(ctypes.c_bool, False)
        self._pool = ProcessPoolExecutor(
            count,
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
            raise WorkerDied(BROKEN) from None

    def survey(self, devices: int, run: Run) -> Iterator[dict[str, Any]]:
        try:
            yield from self._pool.map(survey_device, range(devices), repeat(run))
        except BrokenProcessPool:
            raise WorkerDied(BROKEN) from None

    def stop(self) -> None:
        self._stopped.value = True

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


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
    load_extensions(config, given)
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
