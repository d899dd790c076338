"""Download a blob over HTTP(S) into a file beside its place, from where an earlier process
stopped (ranges, RFC 9110, section 14).

A server is trusted with nothing: the blob has the size and the sha256 that a message of the
coordinator names, or it is not used.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path

from federated.errors import Refused
from federated.http_transfers.http_client import HttpAccess, HttpTransfer, Passing, Request

__all__ = ["DiskFailure", "HttpDownload", "WrongDigest"]

PIECE = 256 << 10  # bytes that are read at a time


class DiskFailure(Refused):
    """The disk does not take the blob. error: why."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class WrongDigest(Refused):
    """The complete blob has another digest."""


class HttpDownload(HttpTransfer):
    """The download of a blob into `part`, which holds all of it once `complete`."""

    def __init__(self, access: HttpAccess, url: str, part: Path, sha256: str, size: int) -> None:
        """Raise OSError if the disk has no room."""
        super().__init__(access, url, f"download of {sha256[:12]}")
        self._sha256, self._size = sha256, size
        part.touch()
        self._file = part.open("r+b", buffering=0)
        self.moved = min(self._file.seek(0, os.SEEK_END), size)
        if shutil.disk_usage(part.parent).free < size - self.moved:
            self._file.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))

    def _release(self) -> None:
        self._file.close()

    def _attempt(self) -> None:
        if self.moved < self._size:
            headers = {"Range": f"bytes={self.moved}-"} if self.moved else {}
            with self._send(Request("GET", headers)) as answer:
                self._receive(answer)
        self._verify()

    def _receive(self, answer: HTTPResponse) -> None:
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and self.moved:
            self._cut(0)
            raise Passing("that it lacks the range that is missing; starting over")
        self._check(answer, HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
        start, total = read_range(answer)
        if total is not None and total != self._size:
            raise Refused(f"{self.what}: expected {self._size} bytes, found {total}")
        if start > self.moved:
            raise Refused(f"{self.what}: expected bytes from {self.moved}, found from {start}")
        if start < self.moved:  # a server without ranges sends everything
            self._cut(start)
        while piece := answer.read(min(PIECE, self._size - self.moved)):
            self._access.transferred.add(len(piece))
            self._write(piece)
        if self.moved < self._size:
            raise Passing(f"only {self.moved} of {self._size} bytes")

    def _write(self, piece: bytes) -> None:
        with self._going_on():
            try:
                self._file.seek(self.moved)
                data = memoryview(piece)
                while data := data[self._file.write(data) :]:
                    pass
            except OSError as error:
                raise DiskFailure(error) from error
            self.moved += len(piece)

    def _cut(self, size: int) -> None:
        with self._going_on():
            self._file.truncate(size)
            self.moved = size

    def _verify(self) -> None:
        """Check the digest. Raises WrongDigest, after the bytes were discarded."""
        found, at = hashlib.sha256(), 0
        while at < self._size:
            with self._going_on():
                self._file.seek(at)
                piece = self._file.read(min(PIECE, self._size - at))
            if not piece:
                break
            found.update(piece)
            at += len(piece)
        if found.hexdigest() != self._sha256:
            self._cut(0)
            raise WrongDigest(
                f"{self.what}: expected sha256 {self._sha256[:16]}, found "
                f"{found.hexdigest()[:16]}; the download starts over"
            )
        self._cut(self._size)


def read_range(answer: HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of an answer's first byte, and the size of the whole blob if the server
    states it.
    """
    if answer.status == HTTPStatus.OK:
        return 0, answer.length
    text = answer.getheader("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", text)
    if found is None:
        raise Refused(f"expected a header Content-Range, found {text[:80]!r}")
    return int(found[1]), None if found[2] == "*" else int(found[2])
