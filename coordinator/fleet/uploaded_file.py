"""Take an update that an agent uploads over HTTP, which the server appends to a file
(`coordinator.http_transfers`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from federated.errors import Refused
from federated.wire.messages import Chunk, Manifest
from federated.wire.partial_file import HAVE, PART

__all__ = ["UploadedFile"]


class UploadedFile:
    """An update whose bytes arrive in `part`, until `finish` moves it to `path`. The file permits
    the upload.
    """

    def __init__(
        self, manifest: Manifest, path: Path, *, sync: bool = True, verify: bool = True
    ) -> None:
        """Permit the upload, or continue that of an earlier process. Raises OSError.

        sync: wait until the disk has the update before it is moved to `path`.
        verify: compute the digest of what was uploaded.
        """
        self.manifest, self.path, self._sync, self._verify = manifest, path, sync, verify
        self.part = path.with_name(path.name + PART)
        note = path.with_name(path.name + HAVE)
        # of a transfer in chunks, or another one; or of an earlier process, if nothing verifies it
        if note.exists() or self.size > manifest.size or not verify:
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
        expected = found = self.manifest.sha256
        with self.part.open("rb") as file:
            if self._verify:
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
