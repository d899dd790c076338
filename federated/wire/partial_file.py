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
import mmap
import os
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import msgspec

from federated.errors import Refused
from federated.system.disk_space_reservation import reserve_space
from federated.system.disk_sync import begin_sync
from federated.wire.chunks import Receiver
from federated.wire.messages import Manifest

__all__ = ["HAVE", "PART", "PartialFile"]

PART, HAVE = ".part", ".have"
PIECE = 1 << 20  # bytes that are read at a time


class PartialFile(Receiver):
    """Collects the chunks of a blob beside `path`, and moves the whole blob there."""

    def __init__(self, manifest: Manifest, path: Path, *, limit: int, sync: bool = True) -> None:
        """Resume a transfer with the same manifest, or begin a new one.

        limit: largest acceptable size, bytes.
        sync: wait until the disk has the blob before it is moved to `path`.
        Raises Refused for a larger manifest, OSError if the disk has no room.
        """
        self.path, self._sync = path, sync
        self._part, self._note = path.with_name(path.name + PART), path.with_name(path.name + HAVE)
        super().__init__(manifest, limit=limit)

    def _open(self) -> bytes:
        have = self._load_bitmap()
        if not have:
            self._note.unlink(missing_ok=True)  # of another manifest, whose note may be longer
        self._file = (
            self._part.open("r+b", buffering=0) if have else _create(self._part, self.manifest.size)
        )
        weakref.finalize(self, self._file.close)  # also of a transfer that an error ends
        return have

    def _write(self, start: int, data: memoryview) -> None:
        self._file.seek(start)
        while data := data[self._file.write(data) :]:
            pass

    def _read(self, start: int) -> Iterator[bytes]:
        self._file.seek(start)
        while piece := self._file.read(PIECE):
            yield piece

    def _view(self) -> memoryview:
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def acknowledge(self) -> bytes:
        """Return the bitmap to send, after storing it. If the disk is full, only a restart loses
        it.
        """
        have = super().acknowledge()
        if self._sync:
            with contextlib.suppress(OSError):
                begin_sync(self._part)
        if any(have):
            note = msgspec.msgpack.encode((self.manifest, have))
            # Overwritten, since its size stays the same: before a file is renamed over another one,
            # a file system may write its content to disk.
            mode = "r+" if self._note.exists() else "w"
            with contextlib.suppress(OSError), FileIO(self._note, mode) as file:
                file.write(note)
        return have

    def finish(self) -> Path:
        """Move the whole blob to `path`. Raises Refused as `verify` does."""
        try:
            self.verify()
        except Refused:
            self._note.unlink(missing_ok=True)
            raise
        if self._sync:
            os.fsync(self._file.fileno())
        self.close()
        self._part.replace(self.path)  # `rename` replaces no file on Windows
        self._note.unlink(missing_ok=True)
        return self.path

    def close(self) -> None:
        """Close the files and keep them."""
        self._file.close()

    def discard(self) -> None:
        """Close and remove the files."""
        self.close()
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

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


def _create(path: Path, size: int) -> FileIO:
    """Create a file of `size` bytes, with all of its room on the disk. Raises OSError if the disk
    is full.
    """
    file = path.open("w+b", buffering=0)
    try:
        reserve_space(file.fileno(), size)
    except OSError:
        file.close()
        path.unlink(missing_ok=True)
        raise
    return file
