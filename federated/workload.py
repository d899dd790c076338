"""An agent's tasks until each is an update or a reason why there is none: waiting, fetching weights, in the trainer's hands. No torch here."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federated.spool import Spool, transfer_of
from federated.task import Task
from federated.weights import Weights
from federated.wire import messages

__all__ = ["Outcome", "Trainer", "Workload"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a task ended: the file of its encoded update, or the reason why there is none."""

    task: Task
    path: Path | None
    reason: str = ""
    loss: float = float("nan")


class Trainer(Protocol):
    """Whatever does the work of a task, in the background, one at a time. progress: steps that are taken, and planned, as far as it says."""

    progress: tuple[int, int]

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        """Starts on a task whose weights lie encoded in `weights`; the encoded update goes to `result`."""

    def poll(self) -> Outcome | None:
        """The outcome, once there is one; never waits."""

    def cancel(self) -> None:
        """Gives up the present task; `poll` then has nothing of it."""


@dataclass
class Doing:
    """A task that is not finished; given up at `until` (seconds of the participant's clock)."""

    task: Task
    until: float


class Workload:
    """One task is worked on, at most one has its weights on their way, the others wait in the order in which they came."""

    def __init__(self, trainer: Trainer, weights: Weights, spool: Spool) -> None:
        self.trainer, self.weights, self.spool = trainer, weights, spool
        self._working: Doing | None = None
        self._awaiting: Doing | None = None  # whose weights are on their way
        self._queue: deque[Doing] = deque()

    @property
    def working(self) -> Task | None:
        """What the trainer has in its hands."""
        return self._working.task if self._working is not None else None

    @property
    def state(self) -> str:
        """What is done at this moment, in one word; empty where nothing is."""
        return self._working.task.work if self._working is not None else "download" if self._awaiting is not None else ""

    @property
    def progress(self) -> tuple[int, int]:
        """How much of that is done, and of how much: steps, or chunks of weights (of an unknown number: 0)."""
        return self.trainer.progress if self._working is not None else (self.weights.got, 0) if self._awaiting is not None else (0, 0)

    @property
    def lease(self) -> float:
        """Of the task that is worked on, or will be."""
        return next((doing.task.lease for doing in (self._working, self._awaiting) if doing is not None), 0.0)

    def add(self, task: Task, until: float) -> None:
        """A task to do; given up at `until`."""
        self._queue.append(Doing(task, until))

    def renew(self, task: Task, same: Callable[[Task], bool], until: float, now: float) -> bool:
        """Give the task that is under way more time, and fetch its weights from where they are published now; False where there is none."""
        found = [doing for doing in self._all() if same(doing.task)]
        for doing in found:
            moved, doing.task, doing.until = doing.task.slot != task.slot, task, until
            if moved and doing is self._awaiting:
                self.weights.stop()
                self.weights.fetch(task, now)
        return bool(found)

    def advance(self, now: float, *, online: bool) -> Iterator[Outcome]:
        """All that is due; the tasks that ended with it."""
        late = {id(doing.task) for doing in self._all() if now > doing.until}
        if late:
            self.drop(lambda task: id(task) in late, "its deadline passed")
        if self._working is not None and (outcome := self.trainer.poll()) is not None:
            self._working = None
            yield outcome
        if self._queue and self._working is None and self._awaiting is None:
            self._next(self._queue.popleft(), now)
        if online:
            self.weights.tick(now)

    def fetch(self, topic: str, message: messages.Manifest | messages.Chunk, now: float) -> Iterator[Outcome]:
        """Takes a piece of weights; the task whose weights have no room ended with it. Raises Refused."""
        if (doing := self._awaiting) is None:
            return
        try:
            whole = self.weights.hear(topic, message, now)
        except OSError as error:
            self._awaiting = None
            if self.weights.make_room():
                log.warning("no room in %s: older weights are removed", self.spool.folder)
                self._queue.appendleft(doing)
            else:
                task = doing.task
                yield Outcome(task, None, f"no room for its weights ({task.size} bytes) in {self.spool.folder}: {error.strerror}")
            return
        if whole:
            self._awaiting = None
            self._next(doing, now)

    def drop(self, chosen: Callable[[Task], bool], why: str) -> None:
        """Gives up the chosen tasks."""
        if any(chosen(doing.task) for doing in self._all()):
            log.info("dropping work: %s", why)
        self._queue = deque(doing for doing in self._queue if not chosen(doing.task))
        if self._awaiting is not None and chosen(self._awaiting.task):
            self.weights.stop()
            self._awaiting = None
        if self._working is not None and chosen(self._working.task):
            self.trainer.cancel()
            self._working = None

    def _all(self) -> list[Doing]:
        return [doing for doing in (*self._queue, self._working, self._awaiting) if doing is not None]

    def _next(self, doing: Doing, now: float) -> None:
        path = self.weights.find(doing.task.digest)
        if path is not None:
            self._working = doing
            self.trainer.begin(doing.task, path, self.spool.update(transfer_of(doing.task)))
        else:
            self._awaiting = doing
            self.weights.fetch(doing.task, now)
