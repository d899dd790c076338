"""Upload a blob over HTTP(S) to a place for which its address is the permission, from where an
earlier attempt stopped. The coordinator's server takes the whole blob at one address:

HEAD ADDRESS                            answers with Upload-Offset: number of bytes that arrived
PUT ADDRESS, Content-Range: bytes A-B/N  appends the bytes A to B; A must be that number

A store of objects takes each part at an address of its own:

PUT ADDRESS                             stores the part
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus

from federated.errors import Refused
from federated.http_transfers.http_client import HttpAccess, HttpTransfer, Request, parse_url

__all__ = ["OFFSET", "HttpUpload", "PartUpload"]

OFFSET = "Upload-Offset"  # header, as in the IETF's draft on resumable uploads


class HttpUpload(HttpTransfer):
    """The upload of `data`."""

    def __init__(self, access: HttpAccess, url: str, data: memoryview, name: str) -> None:
        super().__init__(access, url, f"upload of {name}")
        self._data = data

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
        if self.moved < size:
            self._put(
                self._data[self.moved :],
                {"Content-Range": f"bytes {self.moved}-{size - 1}/{size}"},
            )
        self.moved = size


class PartUpload(HttpTransfer):
    """The upload of parts, one after the other, each to its own address."""

    def __init__(self, access: HttpAccess, parts: Mapping[str, memoryview], name: str) -> None:
        """parts: by address. Raises Refused for an address that this device must not use."""
        super().__init__(access, next(iter(parts)), f"upload of {name}")
        self._left = deque((parse_url(url, access), part) for url, part in parts.items())

    def _attempt(self) -> None:
        while self._left:
            self._parts, part = self._left[0]
            self._put(part, {})
            self._left.popleft()
            self.moved += len(part)
