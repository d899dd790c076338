"""Keep worker processes that receive updates, give each its share of the agents, and start those
that end again. Partial files stay in the spool, so a worker that was killed loses no update.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.round.tensor_check import Examined, TensorCheck
from coordinator.store.run_lock import read_holder
from coordinator.update_workers.worker_messages import (
    Alive,
    Damaged,
    Drop,
    Failed,
    Flooded,
    Grown,
    Hello,
    Invalid,
    NoRoom,
    Order,
    Pause,
    Receive,
    Report,
    Whole,
    read_frames,
    write_frame,
)
from federated.errors import Refused
from federated.runtime.server_process import relay_log
from federated.system.child_processes import OWN_GROUP
from federated.wire.messages import Chunk, Manifest

__all__ = ["WorkerPool", "WorkerSettings", "WorkerTransfer"]

log = logging.getLogger(__name__)

SILENCE = 60.0  # seconds without a sign of life after which a worker is killed
RESTART_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds; doubled while a worker keeps failing
STOP_TIMEOUT = 5.0  # seconds for a worker to end by itself


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a run share.

    count: number of workers.
    address: of the broker, with the coordinator's credentials.
    run: name of the run.
    rate: most messages per second and connection; None: no limit.
    """

    count: int
    address: str
    run: str
    rate: int | None = None


class WorkerTransfer:
    """An update that a worker receives into `path`: what `PartialFile` is to an update that this
    process receives.

    begun: whether the worker has reserved its room on the disk.
    received: number of chunks that the worker has.
    whole: whether the update is complete.
    problem: why the update starts over although all its chunks had come.
    verdict: what the worker found in its tensors, or why they are refused; None: it did not look.
    paused: whether its agent is asked for no more chunks.
    """

    def __init__(
        self,
        manifest: Manifest,
        path: Path,
        pool: WorkerPool,
        agent: str,
        check: TensorCheck | None = None,
    ) -> None:
        """check: how the worker checks the tensors of the update; None: it does not."""
        self.manifest, self.agent, self.path, self._pool = manifest, agent, path, pool
        self._check = check
        self.verdict: Examined | str | None = None
        self.begun, self.received, self.whole, self.problem = False, 0, False, ""
        self.paused = True  # until `resume`
        self._number = pool.add(self)

    @property
    def size(self) -> int:
        """Number of bytes that have come, at most."""
        return min(self.manifest.size, self.received * self.manifest.chunk)

    @property
    def complete(self) -> bool:
        return self.whole or bool(self.problem)

    @property
    def order(self) -> Receive:
        return Receive(self._number, self.agent, self.manifest, str(self.path), self._check)

    def lacks(self, index: int) -> bool:
        """Return False: no chunk is expected here."""
        return False

    def take(self, chunk: Chunk, now: float) -> bool:
        """Raise Refused."""
        raise Refused(f"transfer {chunk.transfer}: a worker receives it")

    def is_grant_due(self, now: float) -> bool:
        """Return False: the worker acknowledges."""
        return False

    def resume(self) -> None:
        """Let the worker tell the agent which chunks are missing."""
        self.paused = False
        self._pool.send(self.agent, self.order)

    def pause(self) -> None:
        """Let the worker ask for no more chunks."""
        self.paused = True
        self._pool.send(self.agent, Pause(self._number))

    def finish(self) -> Path:
        """Return the file of the update. Raises Refused if its digest was wrong: the transfer
        starts over.
        """
        if self.problem:
            why, self.problem, self.received = self.problem, "", 0
            raise Refused(why)
        self._pool.remove(self._number)
        return self.path

    def discard(self) -> None:
        """End the transfer, and let the worker remove its files."""
        self._pool.remove(self._number)
        self._pool.send(self.agent, Drop(self._number, str(self.path)))


class WorkerProcess:
    """One worker, started again when it ends.

    name: of the worker, in messages.
    """

    def __init__(self, name: str, hello: Hello, reports: queue.SimpleQueue[Report]) -> None:
        self.name, self._hello, self._reports = name, hello, reports
        self._delay, self._started, self._due = RESTART_DELAY, 0.0, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: tuple[threading.Thread, ...] = ()
        self._orders = queue.SimpleQueue[Order | None]()
        self._heard = 0.0
        self._start()

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return None if self._process is None else self._process.pid

    def send(self, order: Order) -> None:
        """Send an order, without waiting for a worker that does not read. It is lost if the worker
        has ended, which `restart_if_dead` notices.
        """
        if self._process is not None:
            self._orders.put(order)

    def restart_if_dead(self) -> bool:
        """Start the worker if it has ended or gives no sign of life, at growing intervals if it
        keeps failing. Return whether a new one was started.
        """
        now = time.monotonic()
        if self._process is not None:
            silent = now - self._heard > SILENCE
            status = self._process.poll()
            if status is None and not silent:
                return False
            why = "gave no sign of life" if silent else f"ended with status {status}"
            self._end(0.0)
            if now - self._started > LONGEST_DELAY:  # it worked for a while
                self._delay = RESTART_DELAY
            self._due = now + self._delay
            log.error("%s %s; starting another in %g s", self.name, why, self._delay)
            self._delay = min(2 * self._delay, LONGEST_DELAY)
        if now < self._due:
            return False
        self._start()
        return self._process is not None

    def close(self) -> None:
        self._end(STOP_TIMEOUT)

    def _start(self) -> None:
        self._started = self._heard = time.monotonic()
        try:
            process = subprocess.Popen(  # no shell
                [sys.executable, "-P", "-m", "coordinator.update_workers.worker_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # ctrl-C at the coordinator must not reach it
                creationflags=OWN_GROUP,
                # it finds what this process finds, such as the package of a broker's scheme
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            )
        except OSError as error:
            log.error("%s cannot start: %s", self.name, error)
            self._due = self._started + self._delay
            return
        self._process, self._orders = process, queue.SimpleQueue[Order | None]()
        self._threads = (
            threading.Thread(target=self._read, args=(process,), daemon=True),
            threading.Thread(target=write_orders, args=(process, self._orders), daemon=True),
        )
        for thread in self._threads:
            thread.start()
        assert process.stderr is not None
        threading.Thread(target=relay_log, args=(self.name, process.stderr), daemon=True).start()
        self.send(self._hello)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Queue the reports of a process until it ends."""
        assert process.stdout is not None
        with process.stdout:
            for report in read_frames(process.stdout, Report):
                self._heard = time.monotonic()
                if not isinstance(report, Alive):
                    self._reports.put(report)

    def _end(self, timeout: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._orders.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        process.kill()
        process.wait()
        for thread in self._threads:
            thread.join()  # its last reports come before those of the next process


def write_orders(process: subprocess.Popen[bytes], orders: queue.SimpleQueue[Order | None]) -> None:
    """Write the orders to a process, up to None or until it ends."""
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:
        while (order := orders.get()) is not None:
            write_frame(process.stdin, order)


class WorkerPool:
    """The workers of a run. Each receives the updates of its own agents: which they are depends
    only on their names and the number of workers, so two workers never write the same file.
    """

    def __init__(
        self, settings: WorkerSettings, epoch: int, *, sync: bool, lock: Path | None = None
    ) -> None:
        """epoch: of this coordinator. sync: whether updates are synced to disk. lock: folder of the
        run that this process holds: its workers end once another coordinator took it over, also if
        this process hangs. Raises OSError.
        """
        where, holder = ("", 0) if lock is None else (str(lock), read_holder(lock))
        self._reports = queue.SimpleQueue[Report]()
        self._transfers = dict[int, WorkerTransfer]()
        self._numbers = itertools.count(1)
        self._flooders = set[str]()
        self._workers = [
            WorkerProcess(
                f"worker {index + 1}",
                Hello(
                    settings.address,
                    f"coordinator-{settings.run}-worker-{index + 1}",
                    settings.run,
                    epoch,
                    sync,
                    settings.rate,
                    where,
                    holder,
                ),
                self._reports,
            )
            for index in range(settings.count)
        ]

    @property
    def busy(self) -> bool:
        """True if updates are expected."""
        return bool(self._transfers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def add(self, transfer: WorkerTransfer) -> int:
        """Return the number of a new transfer."""
        number = next(self._numbers)
        self._transfers[number] = transfer
        return number

    def remove(self, number: int) -> None:
        """Ignore further reports of a transfer."""
        self._transfers.pop(number, None)

    def send(self, agent: str, order: Order) -> None:
        """Send an order to the worker of an agent."""
        self._find(agent).send(order)

    def take_reports(self) -> Iterator[tuple[WorkerTransfer | None, Report]]:
        """Yield what the workers have reported since the last call, with the transfer that it is
        about, if any. Start workers again that have ended, and give them their transfers.
        """
        new = [worker for worker in self._workers if worker.restart_if_dead()]
        with contextlib.suppress(queue.Empty):
            while True:
                report = self._reports.get_nowait()
                if isinstance(report, Flooded):
                    self._flooders.add(report.agent)
                elif isinstance(report, Invalid):
                    yield None, report
                elif (
                    not isinstance(report, Alive)
                    and (found := self._transfers.get(report.number)) is not None
                ):
                    update_transfer(found, report)
                    yield found, report
        for transfer in list(self._transfers.values()) if new else ():
            if self._find(transfer.agent) in new and not transfer.paused:
                transfer.resume()

    def take_flooders(self) -> frozenset[str]:
        """Return the agents that filled their share of a worker's queue since the last call."""
        found, self._flooders = frozenset(self._flooders), set()
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _find(self, agent: str) -> WorkerProcess:
        return self._workers[zlib.crc32(agent.encode()) % len(self._workers)]


def update_transfer(transfer: WorkerTransfer, report: Report) -> None:
    """Record what a worker reported of a transfer."""
    transfer.begun = True
    match report:
        case Grown(_, received):
            transfer.received = received
        case Whole(_, examined, refusal):
            transfer.received, transfer.whole = transfer.manifest.total, True
            transfer.verdict = examined or refusal or None
        case Damaged(_, reason):
            transfer.problem = reason
        case NoRoom() | Failed():
            pass
