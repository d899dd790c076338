"""Transfer an agent's data: download weights and training graphs to its disk, keep some of them,
and send its finished updates to the coordinator; in chunks, or over HTTP where a message of the
coordinator names an address. Torch-free.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from federated.device.agent_run_files import GRAPH, Spool, SpooledUpdate
from federated.errors import Refused
from federated.http_transfers.blob_transfers import BlobTransfer
from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_upload import HttpUpload, PartUpload
from federated.system.file_mapping import map_file
from federated.task import Task
from federated.wire import envelope, messages, topics
from federated.wire.chunks import WINDOW, Sender, split
from federated.wire.link import Link
from federated.wire.retained_blobs import Download, RetainedBlob

__all__ = ["AHEAD", "Downloads", "Uploads"]

log = logging.getLogger(__name__)

CACHED = 8  # weights kept on disk: those of a calibration are reused in the next round


class Downloads:
    """Downloads the weights and the training graphs of a task into a spool, one after the other. It
    keeps at most `CACHED` weights, fewer if the spool is full, and all graphs.

    shared: files by digest that agents of one process share and need not download; None: those that
    an earlier process left in the spool.
    http: how this device reaches servers.
    """

    def __init__(
        self,
        link: Link,
        spool: Spool,
        shared: OrderedDict[str, Path] | None,
        http: HttpAccess,
    ) -> None:
        self.link, self.spool, self._http = link, spool, http
        self._paths = spool.list_downloads() if shared is None else shared
        # Weights of an earlier process are verified before they are used.
        self._unverified = set(self._paths) if shared is None else set()
        self._download: Download | None = None
        self._waiting = deque[tuple[RetainedBlob, Path]]()  # further files of the same task
        self._task = ""  # digest of its weights
        self._used = frozenset[str]()  # digests of its files
        self._chunks = 0  # received of its complete files

    def place(self, task: Task) -> Path:
        """Return the file of a task's weights, which are here, with its graphs beside it. Agents
        that share downloads have them in several folders. Raises OSError.
        """
        weights = self._paths[task.digest]
        for one in task.graphs:
            beside = weights.with_name(f"{one.digest}{GRAPH}")
            if not beside.exists():
                shutil.copyfile(self._paths[one.digest], beside)
        return weights

    def fetch(self, task: Task, now: float) -> bool:
        """Return True if the weights and the graphs of a task are here. If not, download them
        instead of any others.
        """
        self.stop()
        self._task, self._used = (
            task.digest,
            frozenset((task.digest, *(g.digest for g in task.graphs))),
        )
        if all(map(self._find, self._used)):
            return True
        base = topics.model(task.run, task.slot, task.submodel.name)
        weights = RetainedBlob(base, task.digest, task.size), self.spool.weights_path(task.digest)
        graphs = (
            (RetainedBlob(topics.graph(task.run, one.digest), one.digest, one.size), one.digest)
            for one in task.graphs
        )
        files = [weights, *((blob, self.spool.graph_path(digest)) for blob, digest in graphs)]
        self._waiting.extend(file for file in files if not self._find(file[0].sha256))
        self.spool.remove_partial(keep=[blob.sha256 for blob, _ in self._waiting])
        self._chunks = 0
        self._begin_next(now)
        return False

    def _begin_next(self, now: float) -> None:
        blob, path = self._waiting.popleft()
        # not synced: after a power cut, `_find` notices what the disk lost
        self._download = Download(self.link, blob, path, now, sync=False, http=self._http)

    def take(self, topic: str, message: messages.Manifest | messages.Chunk, now: float) -> bool:
        """Handle a message, and return whether it completed the last file of the task. Raises
        Refused, and OSError if the disk has no room.
        """
        download = self._download
        if download is None or not topic.startswith(download.blob.base + "/"):
            return False
        return self._advance(download, lambda: download.take(message, now), now)

    def _advance(self, download: Download, work: Callable[[], bool], now: float) -> bool:
        """Let a download work, which returns whether its file is complete. Begin the next one then,
        and return whether it was the last. Raises as `take`.
        """
        chunks = download.received
        try:
            if not work():
                return False
        except OSError:
            download.discard()
            self._download = None
            self._waiting.clear()
            raise
        self._download = None
        self._chunks += chunks + 1
        self._add(download.blob.sha256, download.path)
        if self._waiting:
            self._begin_next(now)
            return False
        return True

    @property
    def digest(self) -> str:
        """Digest of the weights of the task that `fetch` was last called for."""
        return self._task

    @property
    def received(self) -> int:
        """Number of chunks received for the task whose files are being downloaded."""
        return self._chunks + self._download.received if self._download is not None else 0

    def tick(self, now: float) -> bool:
        """Request missing chunks again, and return whether the last file of the task came over
        HTTP. Raises as `take`.
        """
        download = self._download
        return download is not None and self._advance(download, lambda: download.tick(now), now)

    def follow_link(self, now: float, *, online: bool) -> None:
        """Resume the download when the link is up again, or store its state when it goes down."""
        if self._download is not None:
            self._download.resume(now) if online else self._download.save()

    def stop(self) -> None:
        """Stop the download. A lasting spool keeps its chunks."""
        if self._download is not None:
            self._download.close() if self.spool.lasting else self._download.discard()
            self._download = None
        self._waiting.clear()

    @property
    def removable(self) -> bool:
        """True if downloads can be removed: only this agent has them, and it can download them
        again.
        """
        return self.spool.lasting and bool(self._paths)

    def remove_all(self) -> None:
        """Remove all downloaded weights and graphs."""
        log.warning("no room in %s: removing older weights", self.spool.folder)
        for digest in list(self._paths):
            self._remove(digest)

    def trim(self, used: str) -> None:
        """Remove the oldest downloads, except those in use, until the spool is within its limit."""
        while self.spool.excess() and (
            old := next((one for one in self._paths if one not in {used, *self._used}), "")
        ):
            log.info("the spool is full: removing %s", self._paths[old].name)
            self._remove(old)

    def _find(self, digest: str) -> bool:
        """Return True if a file is here. One of an earlier process must be undamaged."""
        path = self._paths.get(digest)
        if path is None:
            return False
        if digest in self._unverified and not self.spool.is_intact(path):
            log.warning("%s is damaged: downloading it again", path)
            self._remove(digest)
            return False
        self._unverified.discard(digest)
        self._paths.move_to_end(digest)
        return True

    def _add(self, digest: str, path: Path) -> None:
        if digest in self._paths:  # another agent was faster
            path.unlink()
            return
        self._paths[digest] = path
        weights = [one for one, where in self._paths.items() if where.suffix != GRAPH]
        for old in weights[: max(0, len(weights) - CACHED)]:
            self._remove(old)
        self.trim(self._task)

    def _remove(self, digest: str) -> None:
        self._unverified.discard(digest)
        self._paths.pop(digest).unlink(missing_ok=True)


# largest number of chunks in flight, of all updates together: less than a link's queue holds
AHEAD = 2 * WINDOW
PAUSE = 3.0  # seconds after an upload over HTTP before the same update is uploaded again


@dataclass(frozen=True)
class Upload:
    """The transfer of a task's update."""

    task: Task
    sender: Sender
    data: memoryview


class Uploads:
    """The updates of one agent in one run, by transfer, the oldest first. http: how this device
    reaches servers.
    """

    def __init__(
        self,
        link: Link,
        run: str,
        agent: str,
        spool: Spool,
        http: HttpAccess = HttpAccess(),  # noqa: B008  # frozen
    ) -> None:
        self.link, self.run, self.agent, self.spool, self._http = link, run, agent, spool, http
        self._uploads: dict[str, Upload] = {}
        self._transfers: dict[str, BlobTransfer] = {}  # those over HTTP
        # when the last one of an update ended, and up to which byte it sent parts
        self._ended: dict[str, tuple[float, int]] = {}
        self._reaches: dict[str, int] = {}  # up to which byte a running one sends parts

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
            self._uploads[manifest.transfer] = Upload(task, Sender(manifest, data), data)
            yield task

    def add(self, task: Task, path: Path, run: messages.Run) -> None:
        """Add the update in a file. Raises OSError if the file cannot be read, ValueError if it is
        empty.
        """
        data = map_file(path)
        manifest = split(data, self.link.max_chunk, task.transfer, self._http.share(path))
        self.spool.note(SpooledUpdate(task, manifest, path), run)
        self._uploads[manifest.transfer] = Upload(task, Sender(manifest, data), data)

    def remove(self, task: Task) -> None:
        """Remove an update, also from the disk."""
        self._end_transfer(task.transfer)
        self._ended.pop(task.transfer, None)
        self._uploads.pop(task.transfer, None)
        self.spool.remove_update(task.transfer)

    def offer(self, task: Task, *, restart: bool) -> None:
        """Offer an update. The answer tells which chunks the coordinator has. restart: True if
        chunks in flight may be lost.
        """
        sender = self._uploads[task.transfer].sender
        if restart:
            sender.restart()
        offer = messages.Offer(
            sender.manifest, task.run, task.round, task.attempt, task.work, task.submodel.name
        )
        self.link.publish(topics.say(self.run, self.agent), envelope.encode(offer))

    def take_grant(self, grant: messages.Grant, now: float) -> None:
        """Handle the coordinator's bitmap, or the address at which it takes the update. Raises
        Refused for an invalid one.
        """
        upload = self._uploads.get(grant.transfer)
        if upload is None:
            return
        over_http = bool(grant.url or grant.parts)
        queued = not grant.open and grant.transfer not in self._ended
        upload.sender.take_grant(grant.have, grant.open and not over_http, now, queued=queued)
        if not grant.open or not over_http:
            self._end_transfer(grant.transfer)
        elif grant.parts:
            self._send_parts(grant, upload, now)
        else:
            self._send_whole(grant, upload, now)

    def _send_whole(self, grant: messages.Grant, upload: Upload, now: float) -> None:
        """Upload an update to the coordinator's server."""
        running, (ended, _) = self._transfers.get(grant.transfer), self._find_end(grant.transfer)
        if running is None and now - ended < PAUSE:
            return  # the coordinator may not have noticed yet that it has everything
        if running is None or running.url != grant.url:
            self._end_transfer(grant.transfer)
            made = HttpUpload(self._http, grant.url, upload.data, upload.task.submodel.name)
            self._transfers[grant.transfer] = made
            made.start()

    def _send_parts(self, grant: messages.Grant, upload: Upload, now: float) -> None:
        """Upload parts to a store, unless that is under way: if the addresses expire meanwhile, it
        fails, and the next grant has new ones. Raises Refused for a part outside the update.
        """
        if grant.transfer in self._transfers:
            return
        ended, reach = self._find_end(grant.transfer)
        if now - ended >= PAUSE:
            reach = 0  # what the coordinator still lacks was lost
        parts = [part for part in grant.parts if part.start >= reach]
        if any(part.start + part.size > len(upload.data) for part in parts):
            raise Refused(f"transfer {grant.transfer}: a part ends after the update")
        if parts:
            pieces = {one.url: upload.data[one.start : one.start + one.size] for one in parts}
            made = PartUpload(self._http, pieces, upload.task.submodel.name)
            self._reaches[grant.transfer] = max(part.start + part.size for part in parts)
            self._transfers[grant.transfer] = made
            made.start()

    def _find_end(self, transfer: str) -> tuple[float, int]:
        return self._ended.get(transfer, (-math.inf, 0))

    def _end_transfer(self, transfer: str) -> None:
        self._reaches.pop(transfer, None)
        if (running := self._transfers.pop(transfer, None)) is not None:
            running.stop()

    def stop(self) -> None:
        """Stop the transfers over HTTP."""
        for transfer in list(self._transfers):
            self._end_transfer(transfer)

    def check_stalls(self, now: float) -> list[Task]:
        """Return the tasks whose updates to offer again: because their upload makes no progress,
        each once, then again after increasing waits; or because they were uploaded over HTTP, which
        the coordinator looks for then.
        """
        uploaded = set[str]()
        for name, one in list(self._transfers.items()):
            if not one.running:
                del self._transfers[name]
                reach = self._reaches.pop(name, 0)
                self._ended[name] = now, reach if one.failure is None else 0
                if one.failure is not None:
                    log.warning("%s; asking the coordinator again", one.failure)
                else:
                    uploaded.add(name)
        return [
            one.task
            for name, one in self._uploads.items()
            if one.sender.check_stall(now) or name in uploaded
        ]

    def send(self) -> None:
        """Send the chunks that are granted."""
        room = AHEAD
        for transfer, upload in self._uploads.items():
            room -= upload.sender.in_flight
            base = topics.upload(self.run, self.agent, transfer)
            for chunk in upload.sender.next_chunks(room):
                self.link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk))
                room -= 1
