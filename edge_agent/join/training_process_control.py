"""Start the training process within limits, send it tasks, and replace it if it dies.

The agent's own process stays small, keeps the connection to the broker, and survives whatever
happens to the training process: exhausted memory, a crash in a kernel. The two exchange msgpack
over pipes; tensors pass through files of the spool.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import msgpack
import msgspec

from edge_agent.device.process_limits import Limits, ProcessLimiter
from federated.data.download_progress import Show
from federated.device.profile_file import Calibration, Circumstances
from federated.device.task_runner_interface import Outcome
from federated.device.trainers.catalogue import AUTO, DEFAULT
from federated.errors import ConfigError, DataError, EspalierError, MissingExtra, UsageError
from federated.system.child_processes import OWN_GROUP, was_killed
from federated.task import Card, Profile, Task
from federated.wire import messages
from models.submodel import Submodel

__all__ = ["Calibrated", "Channel", "Compared", "Job", "Order", "Worker"]

log = logging.getLogger(__name__)

WAIT = 1.0  # seconds between looks at the queue: on Windows, ctrl-C does not interrupt a wait
PIECE = 1 << 16  # bytes to read at once

# errors that the process reports, by their names in its answers
ERRORS: dict[str, Callable[..., EspalierError]] = {
    "data": DataError,
    "extra": MissingExtra,
    "other": EspalierError,
    "usage": UsageError,
}


@dataclass(frozen=True)
class Job:
    """The data, processor and limits of a training process.

    data: a name, a path or module:function; empty for a process without data.
    root: folder of named data sets.
    shard, partition, seed: the part of a named data set, as for `--shard` and `--partition`.
    device: cpu or cuda.
    model, method, codec: the owner's `module:attribute` that a run may use; empty for none.
    labels: the owner's labels for the device.
    trainer: a name in `federated.device.trainers.catalogue`.
    attack: one of `federated.device.attacks.known_attacks`, for tests and research; empty for none.
    watts: power of the device while it trains, as its owner states it; 0: measure it.
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
    attack: str = ""
    watts: float = 0.0


@dataclass(frozen=True)
class Order:
    """A calibration to perform.

    model: a family, a family and a preset, or the owner's `module:function`.
    batch: examples of a training step.
    threads: 0 finds the best number.
    fresh: ignore cached timings.
    files: paths of exported submodels by name, for runtime onnx.
    """

    model: str
    runtime: str
    batch: int
    threads: int = 0
    fresh: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibrated:
    """The result of a calibration.

    taken: number of timings that were measured now; the others are cached.
    missing: submodels to export first, because their time is not cached; `calibration` then has no
        timings.
    dtype: of the examples that the exported graphs must take.
    """

    calibration: Calibration
    circumstances: Circumstances
    taken: int = 0
    missing: tuple[Submodel, ...] = ()
    dtype: str = ""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison of trainers.

    ratio: the time of a training step with ONNX Runtime, divided by PyTorch's; 0: export the step
        of `submodel` first.
    """

    ratio: float
    submodel: Submodel
    circumstances: Circumstances


class Channel:
    """Send and receive plain values over two pipes as msgpack, which executes nothing.

    A thread reads, since Windows cannot tell whether a pipe holds anything.
    """

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        """incoming, outgoing: without buffers, since messages must arrive at once."""
        self._outgoing = outgoing
        self._received = SimpleQueue[dict[str, Any] | None]()  # None: the other side has closed
        self._next = list[dict[str, Any] | None]()  # the message that `ready` waited for
        threading.Thread(target=self._read, args=(incoming,), name="channel", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises OSError if the other side has closed."""
        rest = memoryview(msgpack.packb(message))
        try:
            while rest:
                rest = rest[self._outgoing.write(rest) :]
        except OSError as error:  # Windows: invalid argument
            raise BrokenPipeError(str(error)) from error

    def receive(self) -> dict[str, Any]:
        """Wait for the next message. Raises EOFError if the other side has closed."""
        while not self.ready(WAIT):
            pass
        if (message := self._next[0]) is None:
            raise EOFError
        self._next.clear()
        return message

    def ready(self, timeout: float = 0.0) -> bool:
        """Return True if a message can be received, or the other side has closed, waiting up to
        `timeout` seconds.
        """
        if not self._next:
            with contextlib.suppress(Empty):
                self._next.append(self._received.get(timeout=timeout))
        return bool(self._next)

    def close(self) -> None:
        """Tell the other side that no message follows."""
        self._outgoing.close()

    def _read(self, incoming: IO[bytes]) -> None:
        messages = msgpack.Unpacker()
        with incoming, contextlib.suppress(OSError, ValueError):  # ValueError: not msgpack
            while piece := incoming.read(PIECE):
                messages.feed(piece)
                for message in messages:
                    if isinstance(message, dict):  # not a text that Python printed at its start
                        self._received.put(message)
        self._received.put(None)


class Worker:
    """A training process. Implements `federated.device.task_runner_interface.TaskRunner`; `close`
    it at the end.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._undecided = job.trainer == AUTO
        self._task: Task | None = None
        self.progress = (0, 0)
        self._number = 0  # of the current task; answers to earlier ones are ignored
        self._start()

    # ---- life cycle ------------------------------------------------------------------------------

    def _start(self) -> None:
        # Passive: waiting threads must sleep. If several agents share a machine, threads that spin
        # take processor time from each other for seconds.
        threads = {"OMP_NUM_THREADS": str(self.job.limits.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edge_agent.join.training_process"],
            env={**os.environ, **threads, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # only the agent handles ctrl-C
            creationflags=OWN_GROUP,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._limiter = ProcessLimiter(self._process.pid, self.job.limits)
        self._channel = Channel(self._process.stdout, self._process.stdin)
        self._channel.send(asdict(self.job))
        self._task = None

    def close(self) -> None:
        """End the process; kill it if it does not end by itself."""
        self._channel.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._limiter.close()

    @property
    def limits(self) -> str:
        """Mechanisms that enforce the limits, in words."""
        return ", ".join(self._limiter.how) or "none"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    # ---- before joining --------------------------------------------------------------------------

    def load(self, show: Show = lambda done, total: None) -> Card:
        """Wait until the data are loaded. Raises the error that the process reports.

        show: gets the bytes that have been downloaded, and all of them.
        """
        return msgspec.convert(self._receive_answer(show), Card)

    def measure(self, run: messages.Run, *, fresh: bool = False) -> Profile:
        """Measure the device for a run's network; see `edge_agent.device.profiling`. Takes seconds
        unless the timings are cached. The process continues after an error.

        fresh: ignore cached timings.
        """
        if not fresh:
            self._choose_trainer(run)
        request = {"do": "measure", "run": msgspec.to_builtins(run), "fresh": fresh}
        return msgspec.convert(self._request(request), Profile)

    def _choose_trainer(self, run: messages.Run) -> None:
        """Use the trainer that was measured to be faster, if the owner lets this device choose. A
        method that surveys devices needs PyTorch for that. The choice holds from then on.
        """
        if not self._undecided or run.network is None:
            return
        self._undecided = False
        name = AUTO if run.menu else self._request({"do": "choose", "family": run.network.family})
        if name != AUTO:
            log.info("using the trainer '%s', measured to be faster on this device", name)
            self.close()
            self.job = replace(self.job, trainer=name)
            self._start()
            self.load()

    def describe(self) -> Profile:
        """Return the device's profile without timings."""
        return msgspec.convert(self._request({"do": "describe"}), Profile)

    def check_models(self, models: Sequence[str]) -> None:
        """Check that networks of these names can be built for the data, or, without data, for
        examples of the usual form. Raises ConfigError, UsageError.
        """
        self._request({"do": "check models", "models": models})

    def calibrate(self, order: Order) -> Calibrated:
        """Time the small submodels of a family (see `edge_agent.join.speed_calibration`). The
        process continues after an error.
        """
        request = {"do": "calibrate", "order": msgspec.to_builtins(order)}
        return msgspec.convert(self._request(request), Calibrated)

    def compare_trainers(self, order: Order) -> Compared:
        """Compare training with ONNX Runtime and PyTorch (see `edge_agent.join.trainer_choice`).
        The process continues after an error.
        """
        request = {"do": "compare", "order": msgspec.to_builtins(order)}
        return msgspec.convert(self._request(request), Compared)

    def rehearse(self, task: Task, weights: Path, result: Path) -> None:
        """Perform one task and wait for it. Raises EspalierError if it fails."""
        try:
            self._send_task(0, task, weights, result)
            while "step" in (answer := self._channel.receive()):
                pass
        except (EOFError, OSError) as error:
            raise EspalierError(f"the training process ended: {self._exit_reason()}") from error
        if "failed" in answer:
            raise EspalierError(answer["failed"])

    def _request(self, message: dict[str, Any]) -> Any:
        with contextlib.suppress(OSError):  # the process is dead; waiting for the answer says why
            self._channel.send(message)
        return self._receive_answer()

    def _receive_answer(self, show: Show = lambda done, total: None) -> Any:
        try:
            answer = self._channel.receive()
            while "number" in answer or "downloaded" in answer:  # number: of a cancelled task
                if "downloaded" in answer:
                    show(*answer["downloaded"])
                answer = self._channel.receive()
        except (EOFError, OSError) as error:
            reason = self._exit_reason()
            if self.job.limits.memory and self._process.returncode:
                minimum = "400 MB" if self.job.device == "cpu" else "1.3 GB with CUDA"
                raise ConfigError(
                    f"the training process ended: {reason}; Python and the trainer alone take "
                    f"about {minimum}: raise --limit-memory"
                ) from error
            raise EspalierError(f"the training process ended: {reason}") from error
        if "error" in answer:
            raise ERRORS[answer["error"]](*answer["arguments"])
        return answer["answer"]

    # ---- tasks -----------------------------------------------------------------------------------

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        self._task = task
        self.progress = (0, 0)
        self._number += 1
        with contextlib.suppress(OSError):  # it died while idle; the next `poll` detects that
            self._send_task(self._number, task, weights, result)

    def poll(self) -> Outcome | None:
        try:
            while self._channel.ready():
                answer = self._channel.receive()
                if answer["number"] != self._number or self._task is None:
                    continue
                if "step" not in answer:
                    return self._finish(self._task, answer)
                self.progress = answer["step"], answer["steps"]
        except (EOFError, OSError):
            return self._replace()
        return None

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for an answer of the process."""
        self._channel.ready(timeout)

    @property
    def busy(self) -> bool:
        """Whether the process performs a task."""
        return self._task is not None

    def cancel(self) -> None:
        if self._task is not None:
            self._task = None
            with contextlib.suppress(OSError):
                self._channel.send({"do": "cancel"})

    def _send_task(self, number: int, task: Task, weights: Path, result: Path) -> None:
        self._channel.send(
            {
                "do": "task",
                "number": number,
                "task": msgspec.to_builtins(task),
                "weights": str(weights),
                "result": str(result),
            }
        )

    def _finish(self, task: Task, answer: dict[str, Any]) -> Outcome:
        self._task = None
        if "failed" in answer:
            return Outcome(task, None, answer["failed"], full=answer.get("full", False))
        return Outcome(task, Path(answer["result"]), loss=answer["loss"])

    def _replace(self) -> Outcome | None:
        """Start a new process in place of the dead one. Its task counts as failed."""
        reason, task = self._exit_reason(), self._task
        log.error("the training process ended: %s", reason)
        self.close()
        self._start()
        self.load()
        return Outcome(task, None, reason) if task is not None else None

    def _exit_reason(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.returncode
        if was_killed(code):
            limit = f" of {self.job.limits.memory // 10**6} MB" if self.job.limits.memory else ""
            return f"killed by the system, most likely out of memory{limit}"
        return f"exit code {code}" if code is not None else "it closed its connection"
