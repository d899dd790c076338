"""Execute the tasks of simulated devices on a Ray cluster, in one process per processor or a share
of a GPU, without a shared folder: weights, data and what devices keep travel as objects of Ray.

A worker that dies is replaced, and its task repeated: its result depends on what it is sent alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.settings.config import Config
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.workers import (
    ThreadPool,
    Worker,
    WorkerDied,
    list_given_objects,
    load_extensions,
)
from federated.data.dataset import Dataset
from federated.device.agent_run_files import GRAPH
from federated.errors import ConfigError, require_extra
from federated.install_command import NAME
from federated.runtime.provenance import versions
from federated.task import Task
from federated.training import state_between_rounds
from federated.training.state_between_rounds import FOLDER, find_file
from federated.wire.messages import Run

__all__ = ["RayWorkers"]

RETRIES = 3  # of a connection, of a worker that dies, and of its task
GPU_SHARE = 0.25  # of a GPU for a worker
KEPT = 64  # files of weights that the cluster keeps for further devices
REPORT = 10.0  # seconds until a machine that has just started reports its processors
START = 240.0  # seconds until the first worker must have started: on a busy machine, it takes 60


class RayWorkers(ThreadPool):
    """`Workers` on the cluster at an address, `ray://HOST:PORT`. source: data of the devices.

    Raises MissingExtra; ConfigError if the cluster cannot be used.
    """

    def __init__(self, source: DataSource, config: Config, address: str) -> None:
        with require_extra("simulate.workers = 'ray://...'", "ray"):
            self._ray: Any = import_module("ray")
        self._client = connect(self._ray, address)
        try:
            count = count_free(self._ray, address, config.simulate.device)
            # an actor that is restarted needs the data again, which Ray deletes with its reference
            self._data = self._ray.put(source.whole)
            actors = start_actors(self._ray, source, self._data, config, count)
            check_actor(self._ray, actors[0], address)
        except BaseException:
            self._client.disconnect()
            raise
        self._actors, files = actors, SentFiles(self._ray)
        free = queue.SimpleQueue[Any]()
        for actor in actors:
            free.put(actor)
        super().__init__(count, lambda: RemoteWorker(self._ray, free.get(), files, self.stopped))

    def stop(self) -> None:
        super().stop()
        with contextlib.suppress(ConnectionError):
            for actor in self._actors:
                actor.stop.remote()

    def close(self) -> None:
        super().close()
        with contextlib.suppress(ConnectionError):
            for actor in self._actors:
                self._ray.kill(actor)
        self._client.disconnect()


def connect(ray: Any, address: str) -> Any:
    """Return the connection of this process. Raises ConfigError."""
    attempts = itertools.count(1)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says the same
                return ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of Ray, gRPC or the network
            # a busy cluster at times fails to start the process that serves a connection
            if isinstance(error, ConnectionAbortedError) and next(attempts) <= RETRIES:
                time.sleep(1)
                continue
            raise ConfigError(
                f"simulate.workers = '{address}': cannot connect to a Ray cluster: "
                f"{last_line(error)}; start its first machine with: ray start --head "
                "--ray-client-server-port PORT"
            ) from error


def count_free(ray: Any, address: str, device: str) -> int:
    """Return the number of workers for which the cluster has free processors, or shares of GPUs.
    Raises ConfigError if there are none.
    """
    until = time.monotonic() + REPORT
    while True:
        free = ray.available_resources()
        what, count = "processor", int(free.get("CPU", 0))
        if device == "cuda":
            what, count = "GPU", min(count, int(free.get("GPU", 0) / GPU_SHARE))
        if count:
            return count
        if time.monotonic() > until:
            raise ConfigError(f"simulate.workers = '{address}': the Ray cluster has no free {what}")
        time.sleep(0.5)


def start_actors(ray: Any, source: DataSource, data: Any, config: Config, count: int) -> list[Any]:
    """Start workers. data: Ray's reference to the data of all devices."""
    options = {
        "num_cpus": 1,
        "num_gpus": GPU_SHARE if config.simulate.device == "cuda" else 0,
        "max_concurrency": 2,  # to be stopped while it executes a task
        "max_restarts": RETRIES,
        "max_task_retries": RETRIES,
    }
    actor = ray.remote(RayWorker).options(**options)
    given = list_given_objects(config)
    return [actor.remote(source, config, data, given) for _ in range(count)]


def check_actor(ray: Any, actor: Any, address: str) -> None:
    """Raise ConfigError unless a worker starts, and runs this version of the project."""
    ours = versions([NAME])[NAME]
    try:
        theirs = ray.get(actor.version.remote(), timeout=START)
    except TimeoutError as error:  # Ray's is one
        raise ConfigError(
            f"simulate.workers = '{address}': no worker started within {START:g} s: check "
            "whether the cluster is busy (ray status), and read its logs"
        ) from error
    except Exception as error:  # whatever prevents its start
        raise ConfigError(
            f"simulate.workers = '{address}': a worker cannot start: {last_line(error)}; install "
            f"{NAME} {ours} and modules of your own on each machine of the cluster, with the "
            "version of Python of this one"
        ) from error
    if theirs != ours:
        raise ConfigError(
            f"simulate.workers = '{address}': the cluster has {NAME} {theirs or 'of no version'}, "
            f"this machine {ours or 'of no version'}: install the same version"
        )


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text that says what happened, without a traceback."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1] if lines else type(cause).__name__


class SentFiles:
    """Files that the cluster has, so that each is sent once for all devices."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._lock = ray, threading.Lock()
        self._sent = OrderedDict[tuple[str, int, int], Any]()

    def send(self, path: Path) -> Any:
        """Return Ray's reference to the bytes of a file. Raises OSError."""
        known = path.stat()
        key = str(path), known.st_mtime_ns, known.st_size
        with self._lock:
            if key not in self._sent:
                self._sent[key] = self._ray.put(path.read_bytes())
                while len(self._sent) > KEPT:
                    self._sent.popitem(last=False)
            self._sent.move_to_end(key)
            return self._sent[key]


class RemoteWorker:
    """Executes tasks by a worker on the cluster."""

    def __init__(self, ray: Any, actor: Any, files: SentFiles, stopped: threading.Event) -> None:
        self._ray, self._actor, self._files, self._stopped = ray, actor, files, stopped

    def run_task(self, index: int, task: Task, weights: Path, result: Path) -> float:
        kept = result.parent / FOLDER
        graphs = [weights.with_name(f"{one.digest}{GRAPH}") for one in task.graphs]
        names = [path.name for path in (weights, *graphs)]
        sent = [self._files.send(path) for path in (weights, *graphs)]
        before = read_kept(kept, task.since)
        loss, update, after = self._call("run_task", index, task, before, names, *sent)
        if after is not None:
            find_file(kept, task.round).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            state_between_rounds.prune_before(kept, task.round, since=task.since)
            find_file(kept, task.round).write_bytes(after)
        result.write_bytes(update)
        return float(loss)

    def survey_device(self, index: int, run: Run) -> dict[str, Any]:
        if self._stopped.is_set():
            return {}
        found: dict[str, Any] = self._call("survey_device", index, run)
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the worker. Raises what it raises, and WorkerDied."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._actor, name).remote(*arguments))
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.RayError, ConnectionError) as error:
            raise WorkerDied(
                f"a worker on the Ray cluster ended ({last_line(error)}): resume the run"
            ) from error


def read_kept(folder: Path, since: int) -> bytes | None:
    """Return what a device kept of a round, if anything."""
    path = find_file(folder, since)
    return path.read_bytes() if since and path.exists() else None


# ---- in the processes of the cluster -------------------------------------------------------------


class RayWorker:
    """A worker with the data of all devices."""

    def __init__(
        self, source: DataSource, config: Config, data: Dataset, given: Mapping[str, Any]
    ) -> None:
        load_extensions(config, given)
        source.__dict__["whole"] = data  # in place of loading it
        self._stopped = threading.Event()
        self._worker = Worker(source, config, self._stopped.is_set)

    def stop(self) -> None:
        """End the current task at its next step."""
        self._stopped.set()

    def version(self) -> str:
        """Return the installed version of this project."""
        return versions([NAME])[NAME]

    def run_task(
        self, index: int, task: Task, kept: bytes | None, names: list[str], *files: bytes
    ) -> tuple[float, bytes, bytes | None]:
        """Execute a device's task. Return the loss, the encoded update, and what the device is to
        keep, if anything.

        kept: what it kept of the last round. names, files: the weights first, then graphs.
        """
        with TemporaryDirectory() as folder:
            weights, result = Path(folder) / names[0], Path(folder) / "device" / "update"
            for name, content in zip(names, files, strict=True):
                (Path(folder) / name).write_bytes(content)
            memory = result.parent / FOLDER
            memory.mkdir(parents=True)
            if kept is not None:
                find_file(memory, task.since).write_bytes(kept)
            loss = self._worker.run_task(index, task, weights, result)
            after = read_kept(memory, task.round) if task.work == "train" else None
            return loss, result.read_bytes(), after

    def survey_device(self, index: int, run: Run) -> dict[str, Any]:
        return self._worker.survey_device(index, run)
