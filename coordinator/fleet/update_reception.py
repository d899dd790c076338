"""Receive updates, in chunks, through workers and over HTTP, and check each once it is complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.fleet.round_event_loop import RoundEventLoop
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.update_inbox import MAX_DAMAGED, Inbox
from coordinator.http_transfers.transfer_urls import Transfers
from coordinator.round import round_events as on
from coordinator.round.round_state import Rules, find_task
from coordinator.round.task_state import TaskState
from coordinator.round.tensor_check import Examined
from coordinator.store.journal import Journal
from coordinator.update_workers.worker_messages import Failed, Invalid, NoRoom, Report
from coordinator.update_workers.worker_pool import WorkerPool, WorkerTransfer
from federated.errors import Malformed, Refused, StoreError, WireError
from federated.task import Key
from federated.wire import messages, topics

__all__ = ["Intake", "UpdateReception", "find_key"]

PROGRESS = 0.5  # seconds between events about the chunks of an update: leases are longer


@dataclass(frozen=True)
class Intake:
    """Settings for the reception of updates.

    attempt: the coordinator's session, which its tasks carry.
    epoch: of this coordinator among all of the run; 0: there can be no other one.
    slots: number of updates that are received at the same time.
    chunk: size of a chunk of weights in bytes; 0: what the link allows.
    rules: of the run.
    journal: where events are recorded before they count; None records none.
    urls: of transfers over HTTP; None: all use the link.
    workers: processes that receive updates; None: this one does.
    """

    attempt: int = 1
    epoch: int = 0
    slots: int = 8
    chunk: int = 0
    rules: Rules = Rules()  # noqa: RUF009  # frozen
    journal: Journal | None = None
    urls: Transfers | None = None
    workers: WorkerPool | None = None


class UpdateReception:
    """Turns what arrives of updates into events of the round.

    inbox: stores updates.
    driver: handles the events.
    clock: seconds, of any origin.
    """

    def __init__(self, inbox: Inbox, driver: RoundEventLoop, clock: Callable[[], float]) -> None:
        self._inbox, self._driver, self._clock = inbox, driver, clock

    def store(self, name: str, chunk: messages.Chunk) -> None:
        """Store a chunk of an update, and check the update once it is complete. Raises Refused,
        StoreError.
        """
        key = self._inbox.find_key(name, chunk.transfer)
        new = self._inbox.lacks(name, chunk.transfer, chunk.index)
        finished, now = self._inbox.take(name, chunk, self._clock()), self._clock()
        if finished is not None:
            self._check(name, *finished)
        elif key is not None and new:
            state = self._driver.round.tasks.get(key)
            # each event takes as long as the chunk itself
            if state is None or now - state.sent >= PROGRESS:
                self._driver.handle(on.ChunkCame(now, key))

    def take_reports(self, workers: WorkerPool, run: str) -> Iterator[tuple[str, WireError | None]]:
        """Act on what workers report. Yield the topic of each, and why it is rejected, if it is.
        Raises StoreError.
        """
        for transfer, report in workers.take_reports():
            if isinstance(report, Invalid):
                error = Malformed if report.malformed else Refused
                yield report.topic, error(report.reason)
            elif transfer is not None:
                base = topics.upload(run, transfer.agent, transfer.manifest.transfer)
                try:
                    self._take_report(transfer, report)
                except WireError as refused:
                    yield topics.chunk(base, 0), refused
                else:
                    yield topics.chunk(base, 0), None

    def _take_report(self, transfer: WorkerTransfer, report: Report) -> None:
        """Act on what a worker reported of a transfer. Raises Refused, StoreError."""
        key = self._inbox.find_key(transfer.agent, transfer.manifest.transfer)
        match report:
            case _ if key is None:
                return
            case NoRoom():
                self._inbox.lack_room(key)
            case Failed(_, reason):
                raise StoreError(f"cannot write the update of {key.agent}: {reason}")
            case _:
                self.finish_upload(key, transfer.verdict)

    def follow_uploads(self, run: str) -> Iterator[tuple[str, WireError]]:
        """Note which updates make progress over HTTP, and check those that are complete, which may
        be after their offer. Yield the topic of each that is rejected, and why. Raises StoreError.
        """
        now = self._clock()
        for key in self._inbox.list_grown(now):
            self._driver.handle(on.ChunkCame(now, key))
        for key in self._inbox.list_uploaded():
            try:
                self.finish_upload(key)
            except WireError as error:
                yield topics.say(run, key.agent), error

    def finish_upload(self, key: Key, verdict: Examined | str | None = None) -> bool:
        """Check an update that came over HTTP, to a worker or as a file, if it is complete. Return
        whether it was. Raises Refused if its digest is wrong, StoreError.

        verdict: of the worker on its tensors.
        """
        finished = self._inbox.finish_upload(key)
        if finished is not None:
            self._check(key.agent, *finished, verdict)
        return finished is not None

    def _check(
        self,
        name: str,
        offer: messages.Offer,
        path: Path | None,
        verdict: Examined | str | None = None,
    ) -> None:
        """Check a complete update. path: its file; None: its digest was wrong too often."""
        key, transfer = find_key(name, offer), offer.manifest.transfer
        state = find_task(self._driver.round, key, offer.attempt)
        if state is None or not state.open:
            if path is not None:
                path.unlink(missing_ok=True)
            # to answer the agent
            self._driver.handle(on.UpdateOffered(self._clock(), name, offer))
            return
        try:
            if path is None:
                raise Refused(f"its bytes did not match its manifest, {MAX_DAMAGED} times")
            if isinstance(verdict, str):
                raise Refused(verdict)
            update = self._driver.check(state.task, path, self._elapsed(state), verdict)
        except WireError as error:
            if path is not None:
                path.unlink(missing_ok=True)
            self._driver.handle(
                on.UpdateRefused(self._clock(), key, offer.attempt, transfer, str(error))
            )
            return
        # the notes of an update that outlasts its phase are not checked
        checked = update.work == "train" and not state.outlasting
        loss = float(update.notes["loss"]) if checked else math.nan
        digest = offer.manifest.sha256
        del update  # with it, those that waited may be folded: one mapped file at a time
        self._driver.handle(
            on.UpdateCame(self._clock(), key, offer.attempt, transfer, digest, loss)
        )

    def _elapsed(self, state: TaskState) -> float:
        """Return the seconds that may have passed since a task was sent; infinite if an earlier
        process sent it.
        """
        if state.resumed or state.carried:
            return math.inf
        lost = self._clock.lost if isinstance(self._clock, RunClock) else 0.0
        return self._clock() - state.asked + lost


def find_key(agent: str, answer: messages.Offer | messages.Failure) -> Key:
    """Return the key of the task that a message answers."""
    return Key(agent, answer.submodel, answer.round, answer.work)
