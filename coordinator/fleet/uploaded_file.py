"""Take an update that an agent uploads over HTTP, which the server appends to a file
(`coordinator.http_transfers`), or that a simulated device offers as a file on this machine.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from federated.errors import Refused
from federated.wire.messages import Chunk, Manifest
from federated.wire.partial_file import HAVE, PART

__all__ = ["OfferedFile", "UploadedFile"]


class UploadedFile:
    """An update whose bytes arrive in `part`, until `finish` moves it to `path`. The file permits
    the upload.
    """

    def __init__(self, manifest: Manifest, path: Path, *, sync: bool = True) -> None:
        """Permit the upload, or continue that of an earlier process. Raises OSError.

        sync: wait until the disk has the update before it is moved to `path`.
        """
        self.manifest, self.path, self._sync = manifest, path, sync
        self.part = path.with_name(path.name + PART)
        note = path.with_name(path.name + HAVE)
        if note.exists() or self.size > manifest.size:  # of a transfer in chunks, or another one
            self.part.unlink(missing_ok=True)  # after a kill, there may be the note only
            note.unlink(missing_ok=True)
        self.part.touch()

    @property
    def size(self) -> int:
        """Number of bytes that have come."""
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def complete(self) -> bool:
        return self.size == self.manifest.size

    @property
    def received(self) -> int:
        """Number of received chunks, if it were sent in chunks."""
        return self.size // self.manifest.chunk

    def lacks(self, index: int) -> bool:
        """Return False: no chunk is expected."""
        return False

    def take(self, chunk: Chunk, now: float) -> bool:
        """Raise Refused."""
        raise Refused(f"transfer {chunk.transfer}: it is sent over HTTP, not in chunks")

    def is_grant_due(self, now: float) -> bool:
        """Return False: the server acknowledges."""
        return False

    def acknowledge(self) -> bytes:
        """Return the bitmap to send: none."""
        return b""

    def finish(self) -> Path:
        """Move the whole update to `path`. If its digest is wrong, the upload starts over, and
        Refused is raised.
        """
        expected = self.manifest.sha256
        with self.part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if self._sync:
                os.fsync(file.fileno())
        if found != expected:
            self.part.unlink()
            self.part.touch()
            raise Refused(
                f"transfer {self.manifest.transfer}: expected sha256 {expected[:16]}, found "
                f"{found[:16]}; the transfer starts over"
            )
        self.part.replace(self.path)
        return self.path

    def discard(self) -> None:
        """Remove the file, which ends the permission."""
        self.part.unlink(missing_ok=True)


class OfferedFile(UploadedFile):
    """An update in a file of a simulated device, which the manifest names. The device has written
    all of it, in this process or a worker of it, so nothing is sent or verified.
    """

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self.manifest, self.path, self.part = manifest, path, Path(manifest.url)

    @property
    def complete(self) -> bool:
        return True

    def finish(self) -> Path:
        """Move the update to `path`. Raises OSError."""
        self.part.replace(self.path)
        return self.path
