"""What agents send of their tasks: failures, offers and chunks, each held against the task that it is about, and answered."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from coordinator.acceptance import check_match
from coordinator.agent import Agent
from coordinator.collection import CARRIED, Check, Collection, Settled, concerns, key_of
from coordinator.inbox import SPOILT, Inbox, Key
from coordinator.leases import heard
from coordinator.observe.events import Publish, Rejected, TaskFailed
from federated.errors import Malformed, ProtocolMismatch, Refused, WireError
from federated.task import Task, Update
from federated.wire import messages, topics

__all__ = ["Reception"]

log = logging.getLogger(__name__)

TEMPORARY = "now"  # folder of the spool for updates that go as they are folded

Tell = Callable[[str, messages.Message], None]
"""Says something to an agent."""


class Reception:
    """What is awaited, and what came of it. collection: of the present round or evaluation.

    late: tasks of earlier rounds that may still be answered.
    stirred: whether something changed for which others may have to be asked.
    """

    def __init__(self, inbox: Inbox, agents: Mapping[str, Agent], tell: Tell, publish: Publish, clock: Callable[[], float]) -> None:
        self.inbox, self._agents, self._tell, self._publish, self._clock = inbox, agents, tell, publish, clock
        self.collection, self.late, self.stirred = Collection(), dict[Key, Settled](), True

    def restore(self, tasks: Iterable[Task], check: Check, folder: Callable[[int], str], size: Callable[[Task], int]) -> None:
        """Takes up the tasks of earlier rounds that an earlier coordinator carried. folder: below the spool, where a round's updates lie."""
        for task in tasks:
            entry = Settled(task, self._clock(), check, resumed=True, carried=True)
            self.late[key_of(task)] = entry
            for path in self.inbox.expect({key_of(task): size(task)}, folder(task.round), hold=tuple(self.late)).values():
                self.find(entry, path)

    def expect(self, entries: Sequence[Settled], size: Callable[[Task], int], hold: Sequence[Key]) -> None:
        """Makes ready to receive what is asked for, beside what is awaited already, takes up what lies in the spool, and asks for the rest."""
        limits = {key_of(entry.task): size(entry.task) for entry in entries}
        there = self.inbox.expect(limits, self.collection.folder or TEMPORARY, hold)
        for key, path in there.items():
            self.find(self.collection.entries[key], path)
        for entry in entries:
            agent = self._agents[entry.task.agent]
            entry.lost, entry.lost_at, agent.submodel = not agent.online, self._clock(), entry.task.submodel.name
            if entry.open:
                self._tell(agent.name, entry.task)

    def take(self, entry: Settled) -> Update:
        assert entry.update is not None
        update = self.inbox.read(entry.update)
        if not self.collection.folder:
            entry.update.unlink()
        entry.outcome = "folded"
        return update

    def close(self, carry: Callable[[Settled], bool] | None) -> None:
        dropped, carried = self.collection.close(carry or (lambda entry: False))
        for entry in dropped:
            reason = "its weights are too old" if entry.outcome == "stale" else f"round {entry.task.round} is closed"
            self._tell(entry.task.agent, messages.Abort(entry.task.round, entry.task.attempt, reason))
        self.late |= {key_of(entry.task): entry for entry in carried}
        self.inbox.expect({}, hold=tuple(self.late))
        self.inbox.forget(TEMPORARY)

    def reject(self, topic: str, error: WireError) -> None:
        where = topics.parse(topic)
        name = where.agent if where is not None else None
        kind = {ProtocolMismatch: "protocol", Malformed: "malformed"}.get(type(error), "message")
        self._publish(Rejected(kind, topic, str(error), name, topic=topic))
        if name:
            self._tell(name, messages.Refusal(str(error), topic))

    def find(self, entry: Settled, path: Path) -> None:
        """Takes up what lies in the spool: of the same tasks it was received before, of others it is nothing."""
        try:
            if not entry.resumed or entry.outcome not in ("", CARRIED, "folded"):
                raise Refused("it belongs to an earlier task")
            if entry.outcome == "folded":
                path.unlink()  # the snapshot that it is in was all but done
            else:
                self._check(entry, path)
                entry.update, entry.digest = path, digest(path)
        except (WireError, OSError, ValueError) as error:  # no map of an empty file is a ValueError
            log.info("dropped %s of %s: %s", path.name, entry.task.agent, error)
            path.unlink(missing_ok=True)

    def of(self, agent: str) -> list[Settled]:
        """All that an agent was asked for and that may still come."""
        return [*self.collection.of(agent), *(entry for (name, *_), entry in self.late.items() if name == agent)]

    def about(self, agent: str, about: messages.Offer | messages.Failure) -> Settled | None:
        """What a message is about; None where no such update was asked for."""
        late = self.late.get((agent, about.submodel, about.round))
        return self.collection.find(agent, about) or (late if late is not None and concerns(about, late.task) else None)

    def stir(self) -> None:
        """Something changed for which others may have to be asked: that is looked at next."""
        self.stirred = True

    def fail(self, agent: Agent, failure: messages.Failure) -> None:
        entry = self.about(agent.name, failure)
        if entry is not None and entry.open:
            self.stir()
            entry.outcome = f"{'paused' if failure.paused else 'failed'}: {failure.reason}"
            self._publish(TaskFailed(agent.name, failure.submodel, entry.outcome))

    def welcome(self, agent: Agent, offer: messages.Offer) -> None:
        entry = self.about(agent.name, offer)
        if entry is None:
            reason = f"round {offer.round} of attempt {offer.attempt} awaits no such update"
            self._decline(agent.name, offer.manifest.transfer, reason, "unasked")
        elif entry.update is not None or entry.outcome == "folded":
            self._tell(agent.name, messages.Receipt(offer.manifest.transfer, True, "already there"))
        elif entry.outcome == CARRIED:  # of a round that closed before this coordinator began: its turn comes with the next
            self._tell(agent.name, messages.Grant(offer.manifest.transfer, b"", False))
        elif entry.outcome:
            self._decline(agent.name, offer.manifest.transfer, entry.outcome, "answered")
        else:
            try:
                self._tell(agent.name, self.inbox.open(agent.name, offer, self._clock()))
            except Refused as error:
                self._refuse(agent.name, entry, offer.manifest.transfer, str(error), "size")

    def receive(self, agent: Agent, chunk: messages.Chunk) -> None:
        finished = self.inbox.take(agent.name, chunk, self._clock())
        if finished is None:
            for owed in self.of(agent.name):
                owed.lease = heard(owed.lease, ("chunk", chunk.index), agent.seen)
            return
        offer, path = finished
        entry = self.about(agent.name, offer)
        if entry is None or not entry.open:
            if path is not None:
                path.unlink(missing_ok=True)
            return
        if path is None:
            self._refuse(agent.name, entry, chunk.transfer, f"its bytes were not those that it promised, {SPOILT} times")
            return
        try:
            update = self._check(entry, path)
        except WireError as error:
            path.unlink(missing_ok=True)
            self._refuse(agent.name, entry, chunk.transfer, str(error))
            return
        entry.update, entry.digest, entry.seconds = path, offer.manifest.sha256, self._clock() - entry.started
        self.stir()
        if update.work == "train":
            agent.loss = float(update.notes["loss"])
        self._tell(agent.name, messages.Receipt(chunk.transfer, True, ""))

    def _check(self, entry: Settled, path: Path) -> Update:
        update = self.inbox.read(path)
        check_match(entry.task, update)
        entry.check(entry, update)
        return update

    def _refuse(self, agent: str, entry: Settled, transfer: str, reason: str, kind: str = "update") -> None:
        entry.outcome = f"refused: {reason}"
        self.stir()
        self._decline(agent, transfer, reason, kind)

    def _decline(self, agent: str, transfer: str, reason: str, kind: str) -> None:
        self._publish(Rejected(kind, agent, reason, agent, transfer))
        self._tell(agent, messages.Receipt(transfer, False, reason))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
