"""Retained transfers: a blob published once as retained chunks, which the broker delivers to every
subscriber.

Weights and releases travel this way. The receiver subscribes to the manifest, then to missing
chunks by name, a window at a time: brokers limit how many retained messages one wildcard
subscription delivers (rumqttd to 100, RabbitMQ to none), and a slow device is never sent more than
a window. It writes chunks into a file in place, and gives the file its final name only when the
whole has the expected digest. Received chunks survive the link and the process (see
`federated.wire.partial`): the next one asks only for what is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from federated.errors import Refused
from federated.wire import envelope, messages, topics
from federated.wire.chunks import slices
from federated.wire.link import Link
from federated.wire.partial import PART, Partial

__all__ = ["Download", "RetainedBlob", "publish", "withdraw"]

PATIENCE = 5.0  # seconds without a new chunk before the missing ones are asked for again
WINDOW = 16  # chunks asked for at a time


def publish(link: Link, base: str, manifest: messages.Manifest, data: memoryview) -> None:
    """Publishes `data` retained under `base`: the chunks first, so that whoever sees the manifest
    can have them all.
    """
    for chunk in slices(manifest, data):
        link.publish(topics.chunk(base, chunk.index), envelope.encode(chunk), retain=True)
    link.publish(topics.manifest(base), envelope.encode(manifest), retain=True)


def withdraw(link: Link, base: str, manifest: messages.Manifest) -> None:
    """Clears what `publish` retained."""
    for topic in [topics.manifest(base), *(topics.chunk(base, i) for i in range(manifest.total))]:
        link.publish(topic, b"", retain=True)


@dataclass(frozen=True)
class RetainedBlob:
    """What to fetch, as somebody trusted described it.

    base: the topic that its manifest and chunks are published under.
    sha256: the digest of its bytes.
    size: bytes.
    """

    base: str
    sha256: str
    size: int


class Download:
    """A transfer of `blob` into the file `path`, which continues what an earlier process began.

    Two processes that fetch the same into one folder never write one file: the first holds a lock
    on it, the other writes one of its own.
    """

    def __init__(
        self, link: Link, blob: RetainedBlob, path: Path, now: float, *, sync: bool = True
    ) -> None:
        """sync: whether the whole is on the disk before the file gets its final name."""
        self.link, self.blob, self.path = link, blob, path
        self.progressed = now
        self.spoilt = 0  # times that it was whole, and not what was promised
        self._sync = sync
        self._partial: Partial | None = None
        self._lock = -1  # on the partial file, where that is the one that others go on with
        self._manifest = topics.manifest(blob.base)
        self._asked = dict[int, str]()  # chunks that are subscribed to: their topics by index
        link.subscribe(self._manifest)

    def hear(self, message: messages.Manifest | messages.Chunk, now: float) -> bool:
        """Takes a message of this transfer; True once the file is whole and in place.

        Raises Refused for a foreign or damaged one, OSError where there is no room for it.
        """
        if isinstance(message, messages.Manifest):
            # published again, in other pieces perhaps
            if self._partial is None or self._partial.manifest != message:
                self._check(message)
                self._open(message)
                self.progressed = now
            assert self._partial is not None
            self._ask(self._partial.receiver.missing(WINDOW))
        elif self._partial is None or self._partial.manifest.transfer != message.transfer:
            return False
        elif self._partial.take(message, now):
            self.progressed = now
            self._advance(message.index)
        return self._partial is not None and self._partial.complete and self._finish(self._partial)

    @property
    def got(self) -> int:
        """Chunks that are here."""
        return self._partial.receiver.got if self._partial is not None else 0

    def tick(self, now: float) -> None:
        """Ask again for what is missing if nothing came for PATIENCE seconds: a new subscription
        makes the broker repeat what it retains.
        """
        if now - self.progressed < PATIENCE:
            return
        self.progressed = now
        self._unsubscribe()
        # chunks are asked for once it came: something else may be published there by now
        self.link.subscribe(self._manifest)

    def interrupted(self) -> None:
        """The link went down: keep on disk which chunks came."""
        if self._partial is not None:
            self._keep(self._partial)

    def restored(self, now: float) -> None:
        """The link is back: asks at once for what is missing."""
        self.progressed = now - PATIENCE
        self.tick(now)

    def close(self) -> None:
        """Stops listening; what came stays, for whoever goes on."""
        self._unsubscribe()
        self._let_go(self._partial)

    def discard(self) -> None:
        """Stops listening, and drops what came."""
        self._unsubscribe()
        if self._partial is not None:
            self._partial.discard()
        self._let_go(None)

    def _unsubscribe(self) -> None:
        for topic in (self._manifest, *self._asked.values()):
            self.link.unsubscribe(topic)
        self._asked.clear()

    def _check(self, manifest: messages.Manifest) -> None:
        blob = self.blob
        if (manifest.sha256, manifest.size) != (blob.sha256, blob.size):
            raise Refused(
                f"{blob.base}: expected {blob.size} bytes of sha256 {blob.sha256[:12]}, "
                f"found {manifest.size} of {manifest.sha256[:12]}"
            )

    def _open(self, manifest: messages.Manifest) -> None:
        """Takes what is there of the transfer, or room for all of it, and leaves the rest to be
        asked for.
        """
        if self._partial is not None:
            self._partial.discard()
            self._partial = None
        if self._lock < 0:
            self._lock = _hold(self.path.with_name(self.path.name + PART))
        path = (
            self.path
            if self._lock >= 0
            else self.path.with_name(f"{self.path.name}.{os.getpid()}-{secrets.token_hex(3)}")
        )
        try:
            self._partial = Partial(manifest, path, limit=self.blob.size)
        except OSError:
            self._let_go(None)  # no room: nothing stays, the lock's file neither
            raise

    def _ask(self, wanted: list[int]) -> None:
        for index in wanted:
            if index not in self._asked:
                self._asked[index] = topics.chunk(self.blob.base, index)
                self.link.subscribe(self._asked[index])

    def _advance(self, index: int) -> None:
        """A chunk came: keep the bitmap now and then, and ask for more once half a window is
        left.
        """
        assert self._partial is not None
        if self._partial.receiver.wants_grant(self.progressed):
            self._keep(self._partial)
        if (topic := self._asked.pop(index, None)) is not None:
            self.link.unsubscribe(topic)
        if len(self._asked) <= WINDOW // 2:
            self._ask(self._partial.receiver.missing(WINDOW))

    def _keep(self, partial: Partial) -> None:
        if self._lock >= 0:
            partial.tell()

    def _finish(self, partial: Partial) -> bool:
        try:
            partial.finish(sync=self._sync).replace(self.path)
        except Refused:
            self.spoilt += 1
            raise
        self._unsubscribe()
        self._let_go(None)
        return True

    def _let_go(self, kept: Partial | None) -> None:
        """Closes what is open. kept: what is to stay on the disk, if anything came; a file of our
        own is of no use to others.
        """
        if (
            kept is not None
            and self._lock >= 0
            and len(kept.receiver.missing(kept.manifest.total)) < kept.manifest.total
        ):
            self._keep(kept)
            kept.close()
        elif kept is not None:
            kept.discard()
        self._partial = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _hold(path: Path) -> int:
    """A lock on a file, made if there is none, until the handle is closed or the process ends; -1
    where another has it. Raises OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with contextlib.suppress(OSError):  # where the file system knows no locks, nobody has them
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # and not of a file that its last holder removed meanwhile
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    os.close(handle)
    return -1
