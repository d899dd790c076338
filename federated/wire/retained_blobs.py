"""Publish blobs as retained messages, once and in chunks, which the broker delivers to every
subscriber; and download them.

Weights and releases travel this way. The receiver subscribes to the manifest, then to missing
chunks by name, a window at a time: brokers limit how many retained messages one wildcard
subscription delivers (rumqttd to 100, RabbitMQ to none), and a slow device is never sent more than
a window. Received chunks survive the link and the process (see `federated.wire.partial_file`), so
that a later download requests only the missing ones.

A manifest may name an address instead, at which the blob is downloaded over HTTP.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from federated.errors import Refused
from federated.http_transfers.blob_transfers import BlobTransfer
from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_download import DiskFailure, HttpDownload, WrongDigest
from federated.system.disk_sync import sync
from federated.system.file_locks import lock_path, unlock_path
from federated.system.file_mapping import release_pages
from federated.wire import envelope, messages, topics
from federated.wire.chunks import WINDOW, slices
from federated.wire.link import CHUNK, Link
from federated.wire.partial_file import HAVE, PART, PartialFile

__all__ = ["Download", "RetainedBlob", "publish", "withdraw"]

# seconds without a new chunk before the missing ones are requested again; twice as many each time
# after that: a broker that is busy with thousands of agents would send the same chunks again
PATIENCE, MOST_PATIENCE = 5.0, 60.0


def publish(link: Link, base: str, manifest: messages.Manifest, data: memoryview) -> None:
    """Publish `data` under `base`: the manifest last, when all chunks can be fetched. A receiver
    that got the manifest before receives chunks as they are published. With an address in the
    manifest, there are no chunks.
    """
    for chunk in slices(manifest, data) if not manifest.url else ():
        link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk), retain=True)
        if chunk.index % WINDOW == 0:
            release_pages(data, chunk.index * manifest.chunk)
    link.publish(topics.manifest(base), envelope.encode(manifest), retain=True)


def withdraw(link: Link, base: str, manifest: messages.Manifest) -> None:
    """Delete the manifest and the chunks that `publish` retained at the broker."""
    chunks = range(manifest.total if not manifest.url else 0)
    for topic in [topics.manifest(base), *(topics.chunk(base, i) for i in chunks)]:
        link.publish(topic, b"", retain=True)


@dataclass(frozen=True)
class RetainedBlob:
    """A published blob, as a trusted message described it.

    base: topic that its manifest and chunks are published under.
    sha256: its digest, hexadecimal.
    size: bytes.
    """

    base: str
    sha256: str
    size: int


class Download:
    """The download of a blob into a file. It resumes a download of an earlier process.

    Two processes that download the same blob into one folder never write one file: the first locks
    it, the other writes a file of its own.

    progressed: time at which the last new chunk arrived.
    digest_failures: number of complete transfers with a wrong digest.
    """

    def __init__(
        self,
        link: Link,
        blob: RetainedBlob,
        path: Path,
        now: float,
        *,
        sync: bool = True,
        http: HttpAccess = HttpAccess(),  # noqa: B008  # frozen
    ) -> None:
        """sync: write the blob to the disk before the file gets its final name. http: how this
        device reaches servers.
        """
        self.link, self.blob, self.path = link, blob, path
        self._http = http
        self._transfer: BlobTransfer | None = None
        self.progressed, self._patience, self.digest_failures = now, PATIENCE, 0
        self._sync = sync
        self._partial: PartialFile | None = None
        self._part = path.with_name(path.name + PART)  # that other processes resume
        self._lock = -1  # on it
        self._place = path  # beside which the bytes are collected
        self._manifest = topics.manifest(blob.base)
        self._requested = dict[int, str]()  # topics of the subscribed chunks, by index
        self._arrived = list[str]()  # topics of those that arrived and are still subscribed
        link.subscribe(self._manifest)

    def take(self, message: messages.Manifest | messages.Chunk, now: float) -> bool:
        """Handle a message of this transfer, and return whether the file is complete.

        Raises Refused for a message that is damaged or of another blob, OSError if the disk has no
        room.
        """
        if isinstance(message, messages.Manifest) and message.url:
            self._begin_transfer(message, now)
            return False
        if isinstance(message, messages.Manifest):
            self._end_transfer()  # the blob is published in chunks now
            # The blob may be published again with another chunk size.
            if self._partial is None or self._partial.manifest != message:
                self._open(message)
                self._note_progress(now)
            self._request_missing()
        elif self._partial is None or self._partial.manifest.transfer != message.transfer:
            return False
        elif self._partial.take(message, now):
            self._note_progress(now)
            self._advance(self._partial, message.index)
        return self._partial is not None and self._partial.complete and self._finish(self._partial)

    @property
    def received(self) -> int:
        """Number of chunks received; over HTTP, that of as many bytes."""
        if self._transfer is not None:
            return self._transfer.moved // CHUNK
        return self._partial.received if self._partial is not None else 0

    def tick(self, now: float) -> bool:
        """Return whether the file is complete, as one that comes over HTTP may be.

        Request the missing chunks again if nothing arrived for a while: a new
        subscription makes the broker repeat retained messages. Raises Refused for a transfer over
        HTTP that failed, and then begins it again later; OSError if the disk has no room.
        """
        if self._transfer is not None:
            self.progressed = now
            return self._check_transfer(self._transfer)
        if now - self.progressed < self._patience:
            return False
        self.progressed, self._patience = now, min(MOST_PATIENCE, 2 * self._patience)
        self._unsubscribe()
        # The manifest first: another blob may be published there by now.
        self.link.subscribe(self._manifest)
        return False

    def _note_progress(self, now: float) -> None:
        self.progressed, self._patience = now, PATIENCE

    def save(self) -> None:
        """Store on disk which chunks were received. Call it when the link goes down."""
        if self._partial is not None and self._lock >= 0:
            self._partial.acknowledge()

    def resume(self, now: float) -> None:
        """Request the missing chunks at once. Call it when the link is up again."""
        if self._transfer is None:
            self._note_progress(now - PATIENCE)
            self.tick(now)

    def close(self) -> None:
        """Stop the download, and keep its chunks for a later one unless the file is our own."""
        if self._end_transfer() and self._lock >= 0:
            self._unsubscribe()
            self._release()
            return
        if self._partial is not None and self._lock >= 0 and self._partial.received:
            self._partial.acknowledge()
            self._partial.close()
            self._partial = None
        self.discard()

    def discard(self) -> None:
        """Stop the download and remove its chunks."""
        self._unsubscribe()
        if self._end_transfer():
            self._find_place().unlink(missing_ok=True)
        if self._partial is not None:
            self._partial.discard()
        self._release()

    def _unsubscribe(self) -> None:
        self.link.unsubscribe(self._manifest, *self._requested.values(), *self._arrived)
        self._requested.clear()
        self._arrived.clear()

    def _open(self, manifest: messages.Manifest) -> None:
        """Resume the transfer of a manifest, or begin it and allocate all of its room."""
        self._prepare(manifest)
        try:
            self._partial = PartialFile(
                manifest, self._place, limit=self.blob.size, sync=self._sync
            )
        except OSError:
            self._release()
            raise

    def _prepare(self, manifest: messages.Manifest) -> None:
        """Check a manifest, drop a transfer of another one, and lock the file. Raises Refused."""
        blob = self.blob
        if (manifest.sha256, manifest.size) != (blob.sha256, blob.size):
            raise Refused(
                f"{blob.base}: expected {blob.size} bytes with sha256 {blob.sha256[:12]}, "
                f"found {manifest.size} with {manifest.sha256[:12]}"
            )
        if self._partial is not None:
            self._partial.discard()
        self._release()
        self._lock = _lock(self._part)
        own = f"{self.path.name}.{os.getpid()}-{secrets.token_hex(3)}"
        self._place = self.path if self._lock >= 0 else self.path.with_name(own)

    # ---- over HTTP -------------------------------------------------------------------------------

    def _begin_transfer(self, manifest: messages.Manifest, now: float) -> None:
        """Download from the address in a manifest, unless that is under way. Raises Refused,
        OSError.
        """
        if self._transfer is not None and self._transfer.url == manifest.url:
            return
        self._end_transfer()
        self._prepare(manifest)
        note = self._place.with_name(self._place.name + HAVE)
        try:
            if note.exists():  # its file has gaps, where chunks are missing
                note.unlink()
                self._find_place().unlink(missing_ok=True)
            blob = self.blob
            self._transfer = HttpDownload(
                self._http, manifest.url, self._find_place(), blob.sha256, blob.size
            )
        except (OSError, Refused):
            self._release()
            raise
        self.progressed = now
        self._transfer.start()

    def _check_transfer(self, transfer: BlobTransfer) -> bool:
        if transfer.running:
            return False
        part = self._find_place()
        self._end_transfer()
        failure = transfer.failure
        if failure is not None:
            self.digest_failures += isinstance(failure, WrongDigest)
            self._release()
            raise failure.error if isinstance(failure, DiskFailure) else failure
        if self._sync:
            with part.open("r+b") as file:  # Windows syncs no file that is open for reading
                os.fsync(file.fileno())
        part.replace(self.path)
        if self._sync:
            sync(self.path.parent)
        self._unsubscribe()
        self._release()
        return True

    def _end_transfer(self) -> bool:
        """Stop a transfer over HTTP, and return whether there was one. Its file stays."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.stop()
        return transfer is not None

    def _find_place(self) -> Path:
        """Return the file that collects the bytes."""
        return self._place.with_name(self._place.name + PART)

    # ---- in chunks -------------------------------------------------------------------------------

    def _request_missing(self) -> None:
        assert self._partial is not None
        if self._arrived:
            self.link.unsubscribe(*self._arrived)
            self._arrived.clear()
        more = {
            index: topics.chunk(self.blob.base, index)
            for index in self._partial.missing[:WINDOW]
            if index not in self._requested
        }
        if more:
            self._requested |= more
            self.link.subscribe(*more.values())

    def _advance(self, partial: PartialFile, index: int) -> None:
        """Store the bitmap from time to time, and request more once half a window is left. Several
        subscriptions share a message, since each message takes as long as a small chunk.
        """
        if partial.is_grant_due(self.progressed):
            self.save()
        if (topic := self._requested.pop(index, None)) is not None:
            self._arrived.append(topic)
        if len(self._requested) <= WINDOW // 2:
            self._request_missing()

    def _finish(self, partial: PartialFile) -> bool:
        try:
            partial.finish().replace(self.path)
            if self._sync:
                sync(self.path.parent)
        except Refused:
            self.digest_failures += 1
            raise
        self._unsubscribe()
        self._release()
        return True

    def _release(self) -> None:
        """Forget the partial file and release its lock. Remove a file of our own, which no other
        download resumes.
        """
        self._partial = None
        if self._lock >= 0:
            unlock_path(self._part, self._lock)
            self._lock = -1
        elif self._place != self.path:
            self._find_place().unlink(missing_ok=True)
            self._place = self.path


def _lock(path: Path) -> int:
    """Return a handle that locks a file, see `lock_path`; -1 if that is not possible."""
    with contextlib.suppress(OSError):  # another process holds it, or the file system has no locks
        return lock_path(path)
    return -1
