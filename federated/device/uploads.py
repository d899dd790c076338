"""An agent's finished updates, and their transfer to the coordinator. Torch-free."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from federated.device.spool import Spool, SpooledUpdate, map_file
from federated.task import Task
from federated.wire import envelope, messages, topics
from federated.wire.chunks import WINDOW, Sender, split
from federated.wire.link import Link

__all__ = ["AHEAD", "Uploads"]

log = logging.getLogger(__name__)

# largest number of chunks in flight, of all updates together: less than a link's queue holds
AHEAD = 2 * WINDOW


@dataclass(frozen=True)
class Upload:
    """The transfer of a task's update."""

    task: Task
    sender: Sender


class Uploads:
    """The updates of one agent in one run, by transfer, the oldest first."""

    def __init__(self, link: Link, run: str, agent: str, spool: Spool) -> None:
        self.link, self.run, self.agent, self.spool = link, run, agent, spool
        self._uploads: dict[str, Upload] = {}

    def resume(self, run: messages.Run) -> Iterator[Task]:
        """Load the updates that an earlier process left, and yield their tasks. Their chunks stay
        the same, so that those which the coordinator already has still count.
        """
        for update in self.spool.load_updates(run):
            task, manifest = update.task, update.manifest
            if task.agent != self.agent:
                log.warning(
                    "discarding an update in %s: it belongs to the agent %s",
                    self.spool.folder,
                    task.agent,
                )
                self.spool.remove_update(manifest.transfer)
                continue
            data = map_file(update.path)
            if manifest.chunk > self.link.max_chunk:  # the broker's limit is lower than it was
                manifest = split(data, self.link.max_chunk, manifest.transfer)
            log.info(
                "round %d: resuming the upload of an update of %s", task.round, task.submodel.name
            )
            self._uploads[manifest.transfer] = Upload(task, Sender(manifest, data))
            yield task

    def add(self, task: Task, path: Path, run: messages.Run) -> None:
        """Add the update in a file. Raises OSError if the file cannot be read, ValueError if it is
        empty.
        """
        data = map_file(path)
        manifest = split(data, self.link.max_chunk, task.transfer)
        self.spool.note(SpooledUpdate(task, manifest, path), run)
        self._uploads[manifest.transfer] = Upload(task, Sender(manifest, data))

    def remove(self, task: Task) -> None:
        """Remove an update, also from the disk."""
        self._uploads.pop(task.transfer, None)
        self.spool.remove_update(task.transfer)

    def offer(self, task: Task, *, anew: bool) -> None:
        """Offer an update. The answer tells which chunks the coordinator has. anew: chunks in
        flight may be lost.
        """
        sender = self._uploads[task.transfer].sender
        if anew:
            sender.restart()
        offer = messages.Offer(
            sender.manifest, task.run, task.round, task.attempt, task.work, task.submodel.name
        )
        self.link.publish(topics.say(self.run, self.agent), envelope.encode(offer))

    def take_grant(self, grant: messages.Grant, now: float) -> None:
        """Handle the coordinator's bitmap. Raises Refused for an invalid one."""
        if grant.transfer in self._uploads:
            self._uploads[grant.transfer].sender.take_grant(grant.have, grant.open, now)

    def check_stalls(self, now: float) -> list[Task]:
        """Return the tasks whose updates to offer again, because their upload makes no progress:
        each once, then again after increasing waits.
        """
        return [one.task for one in self._uploads.values() if one.sender.check_stall(now)]

    def send(self) -> None:
        """Send the chunks that are granted."""
        room = AHEAD
        for transfer, upload in self._uploads.items():
            room -= upload.sender.in_flight
            base = topics.upload(self.run, self.agent, transfer)
            for chunk in upload.sender.next_chunks(room):
                self.link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))
                room -= 1
