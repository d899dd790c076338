"""Receive chunks into a file, with their bitmap beside it, so that a later process can resume the
transfer.

    NAME.part     the bytes, all of their room allocated at once
    NAME.have     the manifest and the bitmap, written at each acknowledgement
    NAME          the whole blob, after its digest was verified

The system keeps what a killed process wrote. After a power cut the bitmap may name chunks that
never reached the disk. The digest shows that, and the transfer starts over.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from pathlib import Path

import msgspec

from federated.errors import Refused
from federated.system.disk_space_reservation import reserve_space
from federated.wire.chunks import Receiver
from federated.wire.messages import Manifest

__all__ = ["HAVE", "PART", "PartialFile"]

PART, HAVE = ".part", ".have"


class PartialFile(Receiver):
    """Collects the chunks of a blob beside `path`, and moves the whole blob there."""

    def __init__(self, manifest: Manifest, path: Path, *, limit: int) -> None:
        """Resume a transfer with the same manifest, or begin a new one.

        limit: largest acceptable size, bytes. Raises Refused for a larger manifest, OSError if the
        disk has no room.
        """
        self.path = path
        self._part, self._note = path.with_name(path.name + PART), path.with_name(path.name + HAVE)
        super().__init__(manifest, limit=limit)

    def _open(self) -> tuple[mmap.mmap, bytes]:
        if not (have := self._load_bitmap()):
            return _allocate(self._part, self.manifest.size), b""
        with self._part.open("r+b") as file:
            return mmap.mmap(file.fileno(), self.manifest.size), have

    def acknowledge(self) -> bytes:
        """Return the bitmap to send, after storing it. If the disk is full, only a restart loses
        it.
        """
        have = super().acknowledge()
        if any(have):
            new = self._note.with_name(self._note.name + ".new")
            with contextlib.suppress(OSError):
                new.write_bytes(msgspec.msgpack.encode((self.manifest, have)))
                new.replace(self._note)
        if hasattr(mmap, "MADV_DONTNEED"):  # the file keeps the data, which need no memory here
            self._map.madvise(mmap.MADV_DONTNEED)
        return have

    def finish(self, *, sync: bool = True) -> Path:
        """Move the whole blob to `path`. sync: first wait until the disk has it.

        Raises Refused as `verify` does.
        """
        try:
            self.verify()
        except Refused:
            self._note.unlink(missing_ok=True)
            raise
        if sync:
            self._map.flush()
        self.close()
        self._part.replace(self.path)  # `rename` replaces no file on Windows
        self._note.unlink(missing_ok=True)
        return self.path

    def close(self) -> None:
        """Close the files and keep them."""
        # If a view is still in use, for example by a logged error, they are closed with it.
        with contextlib.suppress(BufferError):
            self._buffer.release()
            self._map.close()

    def discard(self) -> None:
        """Close and remove the files."""
        self.close()
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _hash(self) -> str:
        with self._part.open("rb") as file:  # the map would keep the whole blob in memory
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _load_bitmap(self) -> bytes:
        """Return the bitmap that an earlier process stored for this manifest; empty if there is
        none.
        """
        try:
            known, have = msgspec.msgpack.decode(
                self._note.read_bytes(), type=tuple[Manifest, bytes]
            )
            size = self._part.stat().st_size
        except (OSError, ValueError, RecursionError):  # errors of msgspec are ValueErrors
            return b""
        expected = self.manifest.size, self.manifest, -(-self.manifest.total // 8)
        return have if (size, known, len(have)) == expected else b""


def _allocate(path: Path, size: int) -> mmap.mmap:
    """Create and map a file of `size` bytes, with all of its room on the disk: a full disk raises
    OSError here instead of killing the process later.
    """
    try:
        with path.open("w+b") as file:
            reserve_space(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
