"""Receive the agents' updates into files of the run's spool folder, a few transfers at a time. Each
transfer is acknowledged with a bitmap of its chunks, received by a worker process, or uploaded over
HTTP to an address that its grant names. Partial files survive a restart. Simulated devices offer
complete files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from coordinator.fleet.update_file_names import name_file, update_path
from coordinator.fleet.update_transfer import IDLE, Transfer, find_place
from coordinator.fleet.uploaded_file import OfferedFile, UploadedFile
from coordinator.http_transfers.transfer_urls import Transfers
from coordinator.round.tensor_check import TensorCheck
from coordinator.update_workers.worker_pool import WorkerPool, WorkerTransfer
from federated.errors import Refused, StoreError, explain_os_errors
from federated.system.disk_sync import sync
from federated.system.file_mapping import map_file
from federated.task import Key, Update
from federated.wire import messages
from federated.wire.codecs.codec import Codec, Tensors, decode_update
from federated.wire.partial_file import HAVE, PART, PartialFile

__all__ = ["Inbox"]

log = logging.getLogger(__name__)

PACE = 32_768  # bytes per second that keep a slot: less than a poor mobile link achieves
# times that a complete transfer may have a wrong digest: a power cut damages it once, a bad file
# every time
MAX_DAMAGED = 3
REPLACED = "The store held other bytes: check who else may write to it (http.store)"


class Inbox:
    """Receives expected updates up to their expected size, at most `slots` of them at a time.

    While others wait, a transfer keeps its slot as long as it is not slower than PACE. A slower one
    moves to the end of the queue and resumes later; a silent one leaves the queue.
    This bounds the wait of an agent: each transfer ahead of it takes at most IDLE seconds, or its
    size divided by PACE if that is longer.

    A transfer without room on the disk waits as for a slot.

    slots: number of transfers at a time.
    sync: whether a received update is synced to disk before it is acknowledged.
    reserve: bytes of disk to leave free, for what removes updates from the spool.
    full: whether something waits for room, until `retry` is called.
    urls: where agents upload; None: all updates are sent in chunks.
    workers: processes that receive the chunks; None: `take` gets them.
    checks: how workers check the tensors of expected updates.
    uploaded_bytes: of the updates that came over HTTP or through workers.
    """

    def __init__(
        self, spool: Path, slots: int, *, sync: bool = True, urls: Transfers | None = None
    ) -> None:
        self.spool, self.slots, self._sync, self._urls = spool, slots, sync, urls
        self.workers: WorkerPool | None = None
        self.checks = dict[Key, TensorCheck]()
        self.reserve, self.full, self.uploaded_bytes = 0, False, 0
        self._logged = False  # whether the lack of room was logged
        self._expected: dict[Key, int] = {}  # update -> its largest acceptable size, bytes
        self._active: dict[Key, Transfer] = {}
        self._parked: dict[Key, Transfer] = {}  # transfers that lost their slot
        self._waiting: dict[Key, messages.Offer] = {}
        self._chunked = set[Key]()  # updates that are not taken through a store any more
        spool.mkdir(parents=True, exist_ok=True)

    def expect(self, limits: Mapping[Key, int], hold: Collection[Key] = ()) -> None:
        """Expect only these updates, and drop all other transfers.

        limits: update -> its maximum size in bytes.
        hold: updates that stay expected, with their transfers and limits.

        Partial files of an earlier process are resumed. Complete ones are removed: their digests
        were not recorded, so damage would go unnoticed. Their agents got no answer and send them
        again.
        """
        hold = set(hold)
        held = {key: limit for key, limit in self._expected.items() if key in hold}
        new = {key: limit for key, limit in limits.items() if key not in held}
        for key in {*self._active, *self._parked} - held.keys():
            self._drop(key)
        self._waiting = {key: offer for key, offer in self._waiting.items() if key in held}
        self._expected, self.full, self._logged = held | new, False, False
        self._chunked &= held.keys()
        self.checks = {key: check for key, check in self.checks.items() if key in held}
        for key in new:
            self.remove(key)

    def expect_also(self, key: Key, limit: int) -> None:
        """Also expect this update, with its largest size in bytes."""
        self._expected[key] = limit

    def path(self, key: Key) -> Path:
        """Return the file of an update once it is complete."""
        return update_path(self.spool, key)

    def forget(self, folder: str, keep: Collection[Key] = ()) -> None:
        """Remove a folder of the spool, or all that match a pattern such as `round-*`, with their
        files, except those of the given updates.
        """
        kept = {name_file(key).partition(".")[0] for key in keep}
        for path in self.spool.glob(folder):
            if not kept:
                shutil.rmtree(path, ignore_errors=True)
            for file in path.glob("*"):
                if file.name.partition(".")[0] not in kept:
                    file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds kept files
                path.rmdir()

    def open(self, agent: str, offer: messages.Offer, now: float) -> messages.Grant | None:
        """Answer an offer: grant a slot with the bitmap of the chunks that are already here, or ask
        the agent to wait for a slot or for room on the disk. None: a worker grants it, or the
        update is complete already (see `finish_upload`).

        Raises Refused if the update is too large, StoreError if the disk fails.
        """
        manifest = offer.manifest
        key = Key(agent, offer.submodel, offer.round, offer.work)
        limit = self._expected.get(key, 0)
        if not 0 < manifest.size <= limit:
            raise Refused(
                f"update of {agent} for {offer.submodel}: expected at most {limit} bytes, "
                f"found {manifest.size}"
            )
        if self.local:
            with explain_os_errors(StoreError, self._describe_failure(agent)):
                self._make_folder(path := self.path(key))
            self._active[key] = Transfer(agent, offer, OfferedFile(manifest, path), now)
            return None
        known = self._active.get(key) or self._parked.get(key)
        if known is not None and known.offer.manifest != manifest:
            self._drop(key)
        if key in self._active:
            return self._active[key].grant()
        self._waiting[key] = offer
        if (
            len(self._active) >= self.slots
            or len(self._waiting) > 1
            or (self.full and key not in self._parked)
        ):
            return messages.Grant(manifest.transfer, b"", False)
        return self._admit(key, now)

    def take(
        self, agent: str, chunk: messages.Chunk, now: float
    ) -> tuple[messages.Offer, Path | None] | None:
        """Store a chunk. Once the transfer is complete, return the offer and the file, or no file
        if its digest was wrong too often and it is given up.

        Chunks in flight when a transfer lost its slot are stored too; otherwise they would be sent
        again and again. Raises Refused for a corrupt chunk or a wrong digest: the transfer
        continues, or starts over. Raises StoreError if the disk fails.
        """
        key = self.find_key(agent, chunk.transfer)
        if key is None:
            return None  # no longer expected
        transfer = self._transfer(key)
        with explain_os_errors(StoreError, self._describe_failure(agent)):
            if transfer.partial.take(chunk, now):
                transfer.progressed = now
            return self._finish(key) if transfer.partial.complete else None

    def list_grown(self, now: float) -> list[Key]:
        """Return the updates of which more came over HTTP or to a worker since the last call."""
        found = []
        for key in (*self._active, *self._parked):
            transfer = self._transfer(key)
            if isinstance(transfer.partial, UploadedFile | WorkerTransfer):
                size = transfer.partial.size
                if size > transfer.seen:
                    transfer.progressed = now
                    found.append(key)
                transfer.seen = size
        return found

    def list_uploaded(self) -> list[Key]:
        """Return the updates of which everything came over HTTP."""
        return [
            key
            for key in (*self._active, *self._parked)
            if isinstance(one := self._transfer(key).partial, UploadedFile) and one.complete
        ]

    def finish_upload(self, key: Key) -> tuple[messages.Offer, Path | None] | None:
        """Return as `take` does for an update that is complete over HTTP, at a worker, or in a file
        of its device; None for any other. Raises Refused, StoreError.
        """
        if key not in self._active and key not in self._parked:
            return None
        transfer = self._transfer(key)
        if isinstance(transfer.partial, PartialFile) or not transfer.partial.complete:
            return None
        with explain_os_errors(StoreError, self._describe_failure(key.agent)):
            return self._finish(key)

    def _finish(self, key: Key) -> tuple[messages.Offer, Path | None]:
        transfer = self._transfer(key)
        try:
            path = transfer.partial.finish()
        except Refused as error:
            transfer.damaged += 1
            shared = isinstance(transfer.partial, UploadedFile) and self._shared
            why = f"{error}. {REPLACED}" if shared else str(error)
            if transfer.damaged < MAX_DAMAGED:
                raise Refused(why) from error
            if shared:
                self._take_in_chunks(key)
                raise Refused(f"{why}. The agent sends it in chunks now") from error
            self._drop(key)
            self._waiting.pop(key, None)
            return transfer.offer, None
        self._active.pop(key, None)
        self._parked.pop(key, None)
        self._waiting.pop(key, None)
        if not isinstance(transfer.partial, PartialFile):
            self.uploaded_bytes += transfer.offer.manifest.size
        if self._sync and not isinstance(transfer.partial, WorkerTransfer):
            sync(path.parent)
        return transfer.offer, path

    @property
    def local(self) -> bool:
        """Whether agents are in this process, so that they offer complete files, which need not be
        verified.
        """
        return self._urls is not None and self._urls.local

    @property
    def _shared(self) -> bool:
        return self._urls is not None and self._urls.shared

    def _take_in_chunks(self, key: Key) -> None:
        """Let an agent send its update over its own link, which no one else writes to: what came
        through a store with another digest says nothing about the agent.
        """
        offer = self._transfer(key).offer
        log.error("the update of %s comes in chunks, not through the store: %s", key[0], REPLACED)
        if self._urls is not None:
            self._urls.end(find_place(self.path(key)))
        self._drop(key)
        self._chunked.add(key)
        self._waiting[key] = offer

    def _describe_failure(self, agent: str) -> str:
        return f"cannot write an update of {agent} to {self.spool}"

    def find_key(self, agent: str, transfer: str) -> Key | None:
        """Return the update that a transfer carries; None if it is not expected."""
        return next(
            (
                key
                for key in (*self._active, *self._parked)
                if key.agent == agent and self._transfer(key).offer.manifest.transfer == transfer
            ),
            None,
        )

    def knows(self, key: Key) -> bool:
        """Return True if an update was offered before."""
        return key in self._active or key in self._parked or key in self._waiting

    def lacks(self, agent: str, transfer: str, index: int) -> bool | None:
        """Return whether a chunk has not arrived yet; None if its update is not expected."""
        key = self.find_key(agent, transfer)
        return None if key is None else self._transfer(key).partial.lacks(index)

    def _transfer(self, key: Key) -> Transfer:
        return self._active.get(key) or self._parked[key]

    @property
    def load(self) -> tuple[int, int]:
        """Number of transfers that have a slot, and number of those that wait for one."""
        return len(self._active), len(self._waiting)

    @property
    def waiting(self) -> frozenset[Key]:
        """Updates that wait for a slot, or for room on the disk."""
        return frozenset(self._waiting)

    def compare_queue(self, known: frozenset[Key]) -> tuple[frozenset[Key], frozenset[Key]]:
        """Return the updates that wait and are not among the known ones, and vice versa."""
        return self.waiting - known, known - self.waiting

    def remove(self, key: Key) -> None:
        """Remove a complete update."""
        self.path(key).unlink(missing_ok=True)

    def grants(self, now: float, *, quiet: bool = True) -> Iterator[tuple[str, messages.Grant]]:
        """Yield the acknowledgements that are due, and slots for those that wait. quiet: whether
        all received messages are handled, so that speeds can be measured.
        """
        for key in self._slow(now) if quiet else []:
            transfer = self._parked[key] = self._active.pop(key)
            if isinstance(transfer.partial, WorkerTransfer):
                transfer.partial.pause()
            if transfer.pace(now):
                self._waiting[key] = transfer.offer  # a silent one offers again when it is back
                yield transfer.agent, messages.Grant(transfer.offer.manifest.transfer, b"", False)
        for transfer in list(self._active.values()):
            if transfer.partial.is_grant_due(now) and (grant := transfer.grant()) is not None:
                yield transfer.agent, grant
        while len(self._active) < self.slots and (
            first := next((k for k in self._waiting if not self.full or k in self._parked), None)
        ):
            if (grant := self._admit(first, now)) is not None:
                yield first[0], grant

    def _slow(self, now: float) -> list[Key]:
        """Return the transfers that lose their slots, the slowest first: at most as many as
        wait.
        """
        paces = {key: transfer.pace(now) for key, transfer in self._active.items()}
        slow = sorted((key for key, pace in paces.items() if pace < PACE), key=paces.__getitem__)[
            : len(self._waiting)
        ]
        for key, transfer in self._active.items():
            if key not in slow and now - transfer.since > IDLE:
                transfer.begin(now)
        return slow

    def read(self, path: Path, codec: Codec, limit: int, received: Tensors) -> Update:
        """Read the update in a file; with the codec raw, its tensors are views of the mapped file.
        Raises WireError.

        limit: the most bytes of the update, decompressed.
        received: the weights that its agent received.
        """
        return decode_update(map_file(path), codec, limit, received)

    def retry(self, made: bool) -> None:
        """Try again to find room for those that wait. made: whether room was made.

        Otherwise, if no transfer is running that could finish and leave, remove the one that lost
        its slot first, or a partial file of an earlier process; its agent sends the update again.
        """
        if not made and not self._active:
            if self._parked:
                self._drop(next(iter(self._parked)))
            elif left := next(
                (
                    part
                    for key in self._expected
                    if (part := add_suffix(self.path(key), PART)).exists()
                ),
                None,
            ):
                left.unlink()
                left.with_suffix(HAVE).unlink(missing_ok=True)
        self.full = False

    def close(self) -> None:
        """End the workers."""
        if self.workers is not None:
            self.workers.close()

    def lack_room(self, key: Key) -> None:
        """Let a transfer wait for which a worker found no room on the disk."""
        transfer = self._active.get(key) or self._parked.get(key)
        if transfer is not None:
            self._drop(key)
            self._wait_for_room(key, transfer.offer, os.strerror(errno.ENOSPC))

    def _wait_for_room(self, key: Key, offer: messages.Offer, why: str | None) -> None:
        if not self._logged:
            log.error(
                "no room for the %d bytes of %s from %s in %s: %s",
                offer.manifest.size,
                key[1],
                key[0],
                self.spool,
                why,
            )
        self._logged = self.full = True
        self._waiting[key] = offer

    def _admit(self, key: Key, now: float) -> messages.Grant | None:
        """Give a slot to a waiting transfer. Without room on the disk it goes to the end of the
        queue.
        """
        offer = self._waiting.pop(key)
        transfer = self._parked.pop(key, None)
        if transfer is None:
            try:
                partial = self._begin(offer.manifest, key)
            except OSError as error:
                self._wait_for_room(key, offer, error.strerror)
                return messages.Grant(offer.manifest.transfer, b"", False)
            transfer = Transfer(key[0], offer, partial, now, self._urls)
        transfer.progressed = now
        transfer.begin(now)
        self._active[key] = transfer
        return transfer.grant()

    def _begin(
        self, manifest: messages.Manifest, key: Key
    ) -> PartialFile | UploadedFile | WorkerTransfer:
        """Begin a transfer and reserve its room, or continue the one of an earlier process. Raises
        OSError if it would use the reserve.
        """
        path = self.path(key)
        self._make_folder(path)
        part = add_suffix(path, PART)
        more = manifest.size - (part.stat().st_size if part.exists() else 0)
        promised = sum(one.promised for one in (*self._active.values(), *self._parked.values()))
        if more > 0 and shutil.disk_usage(self.spool).free < more + promised + self.reserve:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        over_http = self._urls is not None and manifest.size > self._urls.above
        if over_http and key not in self._chunked:
            return UploadedFile(manifest, path, sync=self._sync)
        if self.workers is not None:
            return WorkerTransfer(manifest, path, self.workers, key.agent, self.checks.get(key))
        return PartialFile(manifest, path, limit=manifest.size, sync=self._sync)

    def _make_folder(self, path: Path) -> None:
        """Make the folder of an update's file. Raises OSError."""
        if not path.parent.exists():
            path.parent.mkdir()
            if self._sync:  # the folder must exist after a power cut
                sync(path.parent.parent)

    def _drop(self, key: Key) -> None:
        for store in (self._active, self._parked):
            if key in store:
                store.pop(key).partial.discard()


def add_suffix(path: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to the transfer into `path`."""
    return path.with_name(path.name + suffix)
