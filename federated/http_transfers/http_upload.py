"""Upload a blob over HTTP(S) to a place for which its address is the permission, from where an
earlier attempt stopped.

HEAD ADDRESS                            answers with Upload-Offset: number of bytes that arrived
PUT ADDRESS, Content-Range: bytes A-B/N  appends the bytes A to B; A must be that number
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus

from federated.errors import Refused
from federated.http_transfers.http_client import HttpAccess, HttpTransfer, Request

__all__ = ["OFFSET", "HttpUpload"]

OFFSET = "Upload-Offset"  # header, as in the IETF's draft on resumable uploads
PIECE = 64 << 10  # bytes that are sent at a time


class HttpUpload(HttpTransfer):
    """The upload of `data`."""

    def __init__(self, access: HttpAccess, url: str, data: memoryview, name: str) -> None:
        super().__init__(access, url, f"upload of {name}")
        self._data, self._sent = data, 0

    def _attempt(self) -> None:
        size = len(self._data)
        with self._send(Request("HEAD", {})) as answer:
            self._check(answer, HTTPStatus.OK, HTTPStatus.NO_CONTENT)
            text = answer.getheader(OFFSET, "")
            if not re.fullmatch(r"\d{1,18}", text) or int(text) > size:
                raise Refused(
                    f"{self.what}: expected {OFFSET} from 0 to {size}, found {text[:80]!r}"
                )
            self.moved = int(text)
        if self.moved == size:
            return
        self._sent = self.moved
        headers = {
            "Content-Length": str(size - self.moved),
            "Content-Range": f"bytes {self.moved}-{size - 1}/{size}",
            "Content-Type": "application/octet-stream",
        }
        with self._send(Request("PUT", headers, self._read_pieces())) as answer:
            self._check(answer, HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
        self.moved = size

    def _read_pieces(self) -> Iterator[memoryview]:
        while piece := self._data[self._sent : self._sent + PIECE]:
            with self._going_on():
                self._sent += len(piece)
            self._access.transferred.add(len(piece))
            yield piece
