"""Begin the download of a blob from the address that a coordinator names: over HTTP(S), or on the
coordinator's machine, where simulated devices are, by copying a file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_download import DiskFailure, HttpDownload

__all__ = ["BlobTransfer", "SharedFolder", "make_download"]


class BlobTransfer(Protocol):
    """A transfer of a blob, which `start` begins.

    url: of the blob.
    moved: bytes that the receiver has.
    failure: why it was given up; None: it was not.
    """

    url: str
    moved: int
    failure: Exception | None

    @property
    def running(self) -> bool:
        """Whether it may still move bytes."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End. Nothing is moved afterwards."""


@dataclass(frozen=True)
class SharedFolder(HttpAccess):
    """How a simulated device and its coordinator reach each other's files: an address is the path
    of one.

    Only a simulation gives its devices this access: a coordinator elsewhere could name any file.
    """

    def share(self, path: Path) -> str:
        return str(path)


class FileCopy:
    """A transfer that `start` completes. copy: does it, and may raise OSError."""

    def __init__(self, url: str, size: int, copy: Callable[[], object]) -> None:
        self.url, self.moved, self._size, self._copy = url, 0, size, copy
        self.failure: Exception | None = None

    @property
    def running(self) -> bool:
        return False

    def start(self) -> None:
        try:
            self._copy()
        except OSError as error:
            self.failure = DiskFailure(error)
        else:
            self.moved = self._size

    def stop(self) -> None:
        """Do nothing: the transfer is complete."""


def make_download(access: HttpAccess, url: str, part: Path, sha256: str, size: int) -> BlobTransfer:
    """Return the download of a blob of `size` bytes into `part`. Raises Refused for an address that
    this device must not use, OSError if the disk has no room.
    """
    if isinstance(access, SharedFolder):
        return FileCopy(url, size, lambda: shutil.copyfile(url, part))
    return HttpDownload(access, url, part, sha256, size)
