"""The process that trains, as the agent sees it: started, held to limits, given tasks, replaced
when it dies.

The agent's own process stays small, answers the broker and outlives whatever happens to the
training: memory that
runs out, a crash in a kernel. Both talk over a socket pair in msgpack; tensors pass through files
of the spool.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from edge_agent.device.limits import Limits, ProcessLimiter
from federated.device.task_runner import Outcome
from federated.device.trainers.catalogue import DEFAULT
from federated.errors import ConfigError, DataError, EspalierError, MissingExtra, UsageError
from federated.task import Card, Task

__all__ = ["Channel", "Job", "Worker"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What a worker is for: whose data it holds, which processor it uses, and within which limits.

    data: a name, a path or module:function, empty to hold none; root: where named data lie; shard:
    as `--shard` and `--partition` say. labels: what its owner calls the device. trainer: its name
    (see `federated.device.trainers.catalogue`).
    model, method, codec: `module:attribute` of the owner's own, which a run may use; "": none.
    """

    name: str
    data: str
    root: str | None
    shard: str
    partition: str
    seed: int
    device: str
    model: str
    limits: Limits
    labels: tuple[str, ...] = ()
    trainer: str = DEFAULT
    method: str = ""
    codec: str = ""


class Channel:
    """Plain values over a connection, as msgpack: nothing that either side sends is ever
    executed.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: dict[str, Any]) -> None:
        self.connection.send_bytes(msgpack.packb(message))

    def receive(self) -> dict[str, Any]:
        """The next message; waits. Raises EOFError when the other side is gone."""
        message = msgpack.unpackb(self.connection.recv_bytes())
        assert isinstance(message, dict)
        return message

    def ready(self, timeout: float = 0.0) -> bool:
        return bool(self.connection.poll(timeout))


class Worker:
    """A training process, which is a `federated.device.task_runner.TaskRunner`; `close` it at the
    end.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.card: Card | None = None
        self._task: Task | None = None
        self.progress = (0, 0)
        self._number = 0  # of the present task: answers to earlier ones are of no interest
        self._start()

    # ---- life ------------------------------------------------------------------------------------

    def _start(self) -> None:
        here, there = socket.socketpair()
        # Passive: threads that wait must sleep. Spinning ones, of several agents on one machine,
        # steal each other's processors for seconds.
        threads = {"OMP_NUM_THREADS": str(self.job.limits.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        environment = {**os.environ, **threads, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "edge_agent.join.training_process", str(there.fileno())],
            pass_fds=[there.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C is the agent's to answer
        )
        there.close()
        self._cage = ProcessLimiter(self._process.pid, self.job.limits)
        self._channel = Channel(Connection(here.detach()))
        self._channel.send(asdict(self.job))
        self._task = None

    def close(self) -> None:
        """Ends the process, at once if it does not end by itself."""
        self._channel.connection.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._cage.close()

    @property
    def limits(self) -> str:
        """By what means the limits are enforced, in words."""
        return ", ".join(self._cage.how) or "none"

    # ---- before joining --------------------------------------------------------------------------

    def load(self) -> Card:
        """Waits until the data are loaded. Raises DataError or MissingExtra as the worker found
        them.
        """
        answer = self._ask()
        self.card = msgspec.convert(answer["card"], Card)
        return self.card

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def measure(self, run: dict[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        """What the device is and can do, for a run's network; seconds of work where it is not
        known. See `edge_agent.device.profiling`.

        fresh: takes nothing as known. An error of its own ends nothing.
        """
        return self._request({"do": "measure", "run": run, "fresh": fresh})

    def look(self) -> dict[str, Any]:
        """What the device is, as `edge_agent.device.profiling.DeviceFacts`, and its labels."""
        return self._request({"do": "look"})

    def calibrate(self, order: dict[str, Any]) -> dict[str, Any]:
        """Times a family's small submodels: an order and its answer as in
        `edge_agent.join.calibration`. An error ends nothing.
        """
        return self._request({"do": "calibrate", "order": order})

    def rehearse(self, task: dict[str, Any], weights: Path, result: Path) -> None:
        """Does one task and waits for it. Raises EspalierError where it fails."""
        try:
            self._channel.send(
                {
                    "do": "task",
                    "number": 0,
                    "task": task,
                    "weights": str(weights),
                    "result": str(result),
                }
            )
            while "step" in (answer := self._channel.receive()):
                pass
        except (EOFError, OSError) as error:
            raise EspalierError(f"the training process ended: {self._obituary()}") from error
        if "failed" in answer:
            raise EspalierError(answer["failed"])

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(OSError):  # it is dead: there will be no answer, and that says why
            self._channel.send(message)
        return self._ask()

    def _ask(self) -> dict[str, Any]:
        try:
            answer = self._channel.receive()
            while "number" in answer:  # of a task that was given up
                answer = self._channel.receive()
        except (EOFError, OSError) as error:
            why = self._obituary()
            if self.job.limits.memory and self._process.returncode:
                alone = "400 MB" if self.job.device == "cpu" else "1.3 GB with CUDA"
                raise ConfigError(
                    f"the training process ended: {why}; Python and the trainer alone take "
                    f"about {alone}: raise --limit-memory"
                ) from error
            raise EspalierError(f"the training process ended: {why}") from error
        match answer.get("error"):
            case None:
                return answer
            case "data":
                raise DataError(answer["reason"])
            case "usage":
                raise UsageError(answer["reason"])
            case "extra":
                raise MissingExtra(answer["command"], answer["extra"], answer["package"])
            case _:
                raise EspalierError(answer["reason"])

    # ---- tasks -----------------------------------------------------------------------------------

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        self._task = task
        self.progress = (0, 0)
        self._number += 1
        order = {
            "do": "task",
            "number": self._number,
            "task": msgspec.to_builtins(task),
            "weights": str(weights),
            "result": str(result),
        }
        with contextlib.suppress(OSError):  # it died while idle: the next `poll` finds out
            self._channel.send(order)

    def poll(self) -> Outcome | None:
        try:
            while self._channel.ready():
                answer = self._channel.receive()
                if answer["number"] != self._number or self._task is None:
                    continue
                if "step" not in answer:
                    return self._outcome(self._task, answer)
                self.progress = answer["step"], answer["steps"]
        except (EOFError, OSError):
            return self._bury()
        return None

    def cancel(self) -> None:
        if self._task is not None:
            self._task = None
            with contextlib.suppress(OSError):
                self._channel.send({"do": "cancel"})

    def _outcome(self, task: Task, answer: dict[str, Any]) -> Outcome:
        self._task = None
        if "failed" in answer:
            return Outcome(task, None, answer["failed"], full=answer.get("full", False))
        return Outcome(task, Path(answer["result"]), loss=answer["loss"])

    def _bury(self) -> Outcome | None:
        """The process died: a new one takes its place, and the task counts as failed."""
        reason, task = self._obituary(), self._task
        log.error("the training process ended: %s", reason)
        self.close()
        self._start()
        self.load()
        return Outcome(task, None, reason) if task is not None else None

    def _obituary(self) -> str:
        deadline = time.monotonic() + 2
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            limit = f" of {self.job.limits.memory // 10**6} MB" if self.job.limits.memory else ""
            return f"killed by the system, most likely out of memory{limit}"
        return f"exit code {code}" if code is not None else "it closed its connection"
