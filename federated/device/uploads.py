"""An agent's finished updates on their way to the coordinator: their files, and what of them is
sent and received. No torch here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from federated.device.spool import Kept, Spool, mapped
from federated.task import Task
from federated.wire import envelope, messages, topics
from federated.wire.chunks import WINDOW, Sender, split
from federated.wire.link import Link

__all__ = ["AHEAD", "Uploads"]

log = logging.getLogger(__name__)

# chunks of all updates together that may be under way: less than a link's queue holds
AHEAD = 2 * WINDOW


@dataclass
class Upload:
    """One update: what it is, its bytes, and what is sent of them."""

    kept: Kept
    data: memoryview
    sender: Sender


class Uploads:
    """Updates of one agent in one run, by transfer, the oldest first."""

    def __init__(self, link: Link, run: str, agent: str, spool: Spool) -> None:
        self.link, self.run, self.agent, self.spool = link, run, agent, spool
        self._uploads: dict[str, Upload] = {}

    def resume(self, run: messages.Run) -> Iterator[Task]:
        """Takes in what an earlier process left of this run: in the pieces of then, so that what
        the coordinator has of it counts.
        """
        for kept in self.spool.left(run):
            if kept.task.agent != self.agent:
                log.warning(
                    "%s holds an update of %s, which is not this agent: it is dropped",
                    self.spool.folder,
                    kept.task.agent,
                )
                self.spool.forget(kept.manifest.transfer)
                continue
            data, manifest = mapped(kept.path), kept.manifest
            if manifest.chunk > self.link.max_chunk:  # the broker takes less than it did
                manifest = split(data, self.link.max_chunk, manifest.transfer)
            log.info(
                "round %d: an update of %s is there, and offered again",
                kept.task.round,
                kept.task.submodel.name,
            )
            self._put(Kept(kept.task, manifest, kept.path), data)
            yield kept.task

    def add(self, task: Task, path: Path, run: messages.Run) -> None:
        """Takes an update's file in. Raises OSError or ValueError where there is nothing to
        read.
        """
        data = mapped(path)
        kept = Kept(task, split(data, self.link.max_chunk, task.transfer), path)
        self.spool.keep(kept, run)
        self._put(kept, data)

    def forget(self, task: Task) -> None:
        """Removes an update, here and on disk."""
        self._uploads.pop(task.transfer, None)
        self.spool.forget(task.transfer)

    def offer(self, task: Task, *, anew: bool) -> None:
        """Offers an update; the answer says what the coordinator has of it. anew: whatever was
        under way may be lost.
        """
        upload = self._uploads[task.transfer]
        if anew:
            upload.sender = Sender(upload.kept.manifest, upload.data)
        offer = messages.Offer(
            upload.kept.manifest, task.run, task.round, task.attempt, task.work, task.submodel.name
        )
        self.link.publish(topics.say(self.run, self.agent), envelope.encode(offer))

    def granted(self, grant: messages.Grant, now: float) -> None:
        """Takes the coordinator's bitmap. Raises Refused for one that cannot be."""
        if grant.transfer in self._uploads:
            self._uploads[grant.transfer].sender.granted(grant.have, grant.open, now)

    def stalled(self, now: float) -> list[Task]:
        """Whose uploads make no progress, so that the coordinator is to be asked; each is said
        once, then again after a longer while.
        """
        return [upload.kept.task for upload in self._uploads.values() if upload.sender.stalled(now)]

    def send(self, now: float) -> None:
        """Sends the chunks that were asked for."""
        room = AHEAD
        for upload in self._uploads.values():
            room -= upload.sender.under_way
            base = topics.upload(self.run, self.agent, upload.kept.manifest.transfer)
            for chunk in upload.sender.due(now, room):
                self.link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))
                room -= 1

    def _put(self, kept: Kept, data: memoryview) -> None:
        self._uploads[kept.manifest.transfer] = Upload(kept, data, Sender(kept.manifest, data))
