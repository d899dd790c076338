"""An agent's finished updates on their way to the coordinator: offered, sent as its bitmap allows, kept until it has answered. No torch here.

An update goes when the coordinator took or refused it, gave the task up, or asked for newer work; never because a link, a broker or a
coordinator was away. While the link is down nothing is handed to it, so that no queue fills up; when it is back, all is offered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from federated.spool import Kept, Spool, mapped, transfer_of
from federated.task import Task
from federated.wire import envelope, messages, topics
from federated.wire.chunks import WINDOW, Sender, split
from federated.wire.link import Link

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

AHEAD = 2 * WINDOW  # chunks of all updates together that may be under way: less than a link's queue holds


@dataclass
class Sending:
    """One update: what it is, and its bytes."""

    kept: Kept
    data: memoryview
    sender: Sender


class Outbox:
    """Updates of one agent in one run, by transfer. online: whether the link is up."""

    def __init__(self, link: Link, run: str, agent: str, spool: Spool) -> None:
        self.link, self.run, self.agent, self.spool = link, run, agent, spool
        self.online = True
        self._sending: dict[str, Sending] = {}

    def __len__(self) -> int:
        return len(self._sending)

    def tasks(self) -> list[Task]:
        """What the updates are of, the oldest first."""
        return [sending.kept.task for sending in self._sending.values()]

    # ---- in and out ------------------------------------------------------------------------------------------------

    def add(self, task: Task, path: Path, run: messages.Run) -> None:
        """Takes an update's file in and offers it. Raises OSError or ValueError where there is nothing to read."""
        data = mapped(path)
        kept = Kept(task, split(data, self.link.max_chunk, transfer_of(task)), path)
        self.spool.keep(kept, run)
        self._put(kept, data)

    def resume(self, run: messages.Run) -> None:
        """Takes in what an earlier process left of this run: in the pieces of then, so that what the coordinator has of it counts."""
        for kept in self.spool.left(run):
            data, manifest = mapped(kept.path), kept.manifest
            if manifest.chunk > self.link.max_chunk:  # the broker takes less than it did
                manifest = split(data, self.link.max_chunk, manifest.transfer)
            log.info("round %d: an update of %s is there, and offered again", kept.task.round, kept.task.submodel.name)
            self._sending[manifest.transfer] = Sending(Kept(kept.task, manifest, kept.path), data, Sender(manifest, data))

    def settle(self, transfer: str) -> Task | None:
        """The coordinator answered: the update goes. The task that it was of, where there is one."""
        sending = self._sending.pop(transfer, None)
        if sending is None:
            return None
        self.spool.forget(transfer)
        return sending.kept.task

    def drop(self, chosen: Callable[[Task], bool]) -> None:
        """Forgets the updates of the chosen tasks."""
        for transfer in [name for name, sending in self._sending.items() if chosen(sending.kept.task)]:
            self.settle(transfer)

    # ---- on the wire -----------------------------------------------------------------------------------------------

    def granted(self, grant: messages.Grant, now: float) -> None:
        """Takes the coordinator's bitmap. Raises Refused for one that cannot be."""
        if grant.transfer in self._sending:
            self._sending[grant.transfer].sender.granted(grant.have, grant.open, now)

    def offer(self, chosen: Callable[[Task], bool] = lambda task: True) -> None:
        """Offers again, at once; the answer says what the coordinator has, whatever was under way."""
        for sending in self._sending.values():
            if chosen(sending.kept.task):
                sending.sender = Sender(sending.kept.manifest, sending.data)
                self._offer(sending)

    def send(self, now: float) -> None:
        """All that is due: chunks that were asked for, and offers that nobody answered."""
        if not self.online:
            return
        room = AHEAD
        for sending in self._sending.values():
            if sending.sender.stalled(now):
                self._offer(sending)
            room -= sending.sender.under_way
            base = topics.upload(self.run, self.agent, sending.kept.manifest.transfer)
            for chunk in sending.sender.due(now, room):
                self.link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))
                room -= 1

    def _put(self, kept: Kept, data: memoryview) -> None:
        self._sending[kept.manifest.transfer] = sending = Sending(kept, data, Sender(kept.manifest, data))
        self._offer(sending)

    def _offer(self, sending: Sending) -> None:
        if self.online:
            task = sending.kept.task
            offer = messages.Offer(sending.kept.manifest, task.run, task.round, task.attempt, task.work, task.submodel.name)
            self.link.publish(topics.say(self.run, self.agent), envelope.encode(offer))
