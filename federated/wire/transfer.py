"""Retained transfers: a blob published once as chunks, which a broker hands to everyone who asks for it.

Weights and releases travel so. The receiver writes chunks into a file in place, asks for what is missing, and
gives the file its final name only when the whole has the digest that was promised.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from federated.errors import Refused
from federated.wire import messages, topics
from federated.wire.chunks import Receiver, slices
from federated.wire.link import Link

__all__ = ["Download", "allocate", "publish", "withdraw"]

PATIENCE = 5.0  # seconds without a new chunk before the missing ones are asked for by name
WINDOW = 16  # chunks asked for by name at a time


def publish(link: Link, base: str, manifest: messages.Manifest, data: memoryview) -> None:
    """Publishes `data` retained under `base`: the chunks first, so that whoever sees the manifest can have them all."""
    for chunk in slices(manifest, data):
        link.publish(topics.chunk(base, chunk.index), messages.encode(chunk), retain=True)
    link.publish(topics.manifest(base), messages.encode(manifest), retain=True)


def withdraw(link: Link, base: str, manifest: messages.Manifest) -> None:
    """Clears what `publish` retained."""
    for topic in [topics.manifest(base), *(topics.chunk(base, i) for i in range(manifest.total))]:
        link.publish(topic, b"", retain=True)


def allocate(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes, mapped, its space taken at once: a full disk is an error here, not a signal later. Raises OSError."""
    try:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


class Download:
    """A transfer on its way into `path`, expected to have this sha256 and size (bytes)."""

    def __init__(self, link: Link, base: str, sha256: str, size: int, path: Path, now: float) -> None:
        self.link, self.base, self.sha256, self.size, self.path = link, base, sha256, size, path
        self.progressed = now
        self.spoilt = 0  # times that it was whole, and not what was promised
        self._part = path.with_name(f"{path.name}.{os.getpid()}.part")  # two processes may fetch the same
        self._map: mmap.mmap | None = None
        self._receiver: Receiver | None = None
        self._asked: list[str] = []
        self._patterns = [topics.manifest(base), topics.chunk(base, "+")]
        for pattern in self._patterns:
            link.subscribe(pattern)

    def hear(self, message: messages.Manifest | messages.Chunk, now: float) -> bool:
        """Takes a message of this transfer; True once the file is whole and in place.

        Raises Refused for a foreign or damaged one, OSError where there is no room for it.
        """
        if isinstance(message, messages.Manifest):
            if self._receiver is None or self._receiver.manifest != message:  # published again, in other pieces perhaps
                self._check(message)
                self._forget()
                self._open(message)
                self.progressed = now
            return False
        if self._receiver is None or self._receiver.manifest.transfer != message.transfer:
            return False
        if self._receiver.take(message, now):
            self.progressed = now
        if not self._receiver.complete:
            return False
        try:
            self._receiver.finish()
        except Refused:
            self.spoilt += 1
            raise
        self._part.rename(self.path)
        self.close()
        return True

    def tick(self, now: float) -> None:
        """Asks again for what is missing when nothing came for a while: subscribing anew makes the broker repeat what it retains."""
        if now - self.progressed < PATIENCE:
            return
        self.progressed = now
        wanted = [topics.manifest(self.base)]
        if self._receiver is not None:
            wanted += [topics.chunk(self.base, i) for i in self._receiver.missing(WINDOW)]
        for topic in {*self._asked, *wanted}:
            self.link.unsubscribe(topic)
        for topic in wanted:
            self.link.subscribe(topic)
        self._asked = wanted

    def close(self) -> None:
        """Stops listening, and drops what is not whole."""
        for pattern in {*self._patterns, *self._asked}:
            self.link.unsubscribe(pattern)
        self._patterns, self._asked = [], []
        self._forget()

    def _forget(self) -> None:
        self._receiver = None
        if self._map is not None:
            self._map.flush()
            with contextlib.suppress(BufferError):  # somebody still holds a view, an error in a log say: it closes when they let go
                self._map.close()
            self._map = None
        self._part.unlink(missing_ok=True)

    def _check(self, manifest: messages.Manifest) -> None:
        if (manifest.sha256, manifest.size) != (self.sha256, self.size):
            raise Refused(f"{self.base}: expected {self.size} bytes of sha256 {self.sha256[:12]}, found {manifest.size} of {manifest.sha256[:12]}")

    def _open(self, manifest: messages.Manifest) -> None:
        self._map = allocate(self._part, manifest.size)
        self._receiver = Receiver(manifest, limit=self.size, buffer=memoryview(self._map))
