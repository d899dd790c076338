"""A transfer's bytes as they come in: a mapped file, beside it the bitmap of what is there. Both
outlive the process that writes them.

    NAME.part     the bytes, all of their room taken at once
    NAME.have     the manifest and the bitmap, written whenever the bitmap is told to the sender
    NAME          the whole, once its sha256 was what the manifest promised

A process that is killed leaves what it wrote to the system, so the next one goes on where it ended.
After a power cut the bitmap may name chunks that never reached the disk: the sha256 shows it, and
the transfer starts over.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import msgspec

from federated.errors import Refused
from federated.wire.chunks import Receiver
from federated.wire.messages import Chunk, Manifest

__all__ = ["HAVE", "PART", "Partial", "allocate"]

PART, HAVE = ".part", ".have"


class Partial:
    """One transfer on its way into `path`. receiver: what is there of it."""

    def __init__(self, manifest: Manifest, path: Path, *, limit: int) -> None:
        """Goes on with what lies there of the same manifest, else begins anew.

        limit: bytes that are expected at the most. Raises Refused for a manifest of more, OSError
        where there is no room for it.
        """
        if manifest.size > limit:
            raise Refused(
                f"transfer {manifest.transfer}: expected at most {limit} bytes, found "
                f"{manifest.size}"
            )
        self.manifest, self.path = manifest, path
        self._part, self._have = path.with_name(path.name + PART), path.with_name(path.name + HAVE)
        have = self._kept()
        self._map = (
            allocate(self._part, manifest.size)
            if have is None
            else _mapped(self._part, manifest.size)
        )
        self.receiver = Receiver(
            manifest, limit=limit, buffer=memoryview(self._map), have=have or b""
        )

    @property
    def complete(self) -> bool:
        return self.receiver.complete

    def take(self, chunk: Chunk, now: float) -> bool:
        """Stores a chunk; False for one that is here already. Raises Refused for one that is
        foreign or damaged.
        """
        return self.receiver.take(chunk, now)

    def tell(self) -> bytes:
        """The bitmap, kept on disk before anyone is told of it; a disk that does not take it costs
        only what a restart would have saved.
        """
        have = self.receiver.have
        if not any(have):
            return have  # what a restart finds without it
        new = self._have.with_name(self._have.name + ".new")
        with contextlib.suppress(OSError):
            new.write_bytes(msgspec.msgpack.encode((self.manifest, have)))
            new.replace(self._have)
        return have

    def finish(self, *, sync: bool = True) -> Path:
        """The whole, in its place. sync: returns once the disk has it. Raises Refused where its
        sha256 is another, and has nothing then.
        """
        try:
            self.receiver.finish()
        except Refused:
            self._have.unlink(missing_ok=True)
            raise
        if sync:
            self._map.flush()
        self.close()
        self._part.rename(self.path)
        self._have.unlink(missing_ok=True)
        return self.path

    def close(self) -> None:
        """Lets go of the files and leaves them."""
        # somebody still holds a view, an error in a log say: it closes when they let go
        with contextlib.suppress(BufferError):
            self.receiver.release()
            self._map.close()

    def discard(self) -> None:
        """Lets go of the files and removes them."""
        self.close()
        for path in (self._part, self._have):
            path.unlink(missing_ok=True)

    def _kept(self) -> bytes | None:
        """The bitmap of an earlier process, where it was of this very transfer."""
        try:
            known, have = msgspec.msgpack.decode(
                self._have.read_bytes(), type=tuple[Manifest, bytes]
            )
            whole = self._part.stat().st_size == self.manifest.size
        except (OSError, ValueError, RecursionError):  # msgspec's are ValueErrors
            return None
        return (
            have
            if whole and known == self.manifest and len(have) == -(-self.manifest.total // 8)
            else None
        )


def allocate(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes, mapped, its space taken at once: a full disk is an error here,
    not a signal later. Raises OSError.
    """
    try:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)
