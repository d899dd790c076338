"""Begin the transfer of a blob to or from the address that a coordinator names: over HTTP(S), or on
the coordinator's machine, where simulated devices are, by copying a file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federated.http_transfers.http_client import HttpAccess
from federated.http_transfers.http_download import DiskFailure, HttpDownload
from federated.http_transfers.http_upload import HttpUpload

__all__ = ["BlobTransfer", "SharedFolder", "make_download", "make_upload"]


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
    """How a simulated device reaches the files of its coordinator: an address is the path of one.

    Only a simulation gives its devices this access: a coordinator elsewhere could name any file.
    """


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


def replace_file(path: Path, data: memoryview) -> None:
    """Give a file that permits its upload this content, at once: the coordinator may read it. Do
    nothing without the file. Raises OSError.
    """
    if path.exists():
        copy = path.with_name(f"{path.name}.copy")
        copy.write_bytes(data)
        copy.replace(path)


def make_download(access: HttpAccess, url: str, part: Path, sha256: str, size: int) -> BlobTransfer:
    """Return the download of a blob of `size` bytes into `part`. Raises Refused for an address that
    this device must not use, OSError if the disk has no room.
    """
    if isinstance(access, SharedFolder):
        return FileCopy(url, size, lambda: shutil.copyfile(url, part))
    return HttpDownload(access, url, part, sha256, size)


def make_upload(access: HttpAccess, url: str, data: memoryview, name: str) -> BlobTransfer:
    """Return the upload of `data`. name: of the submodel, for messages. Raises Refused for an
    address that this device must not use.
    """
    if isinstance(access, SharedFolder):
        return FileCopy(url, len(data), lambda: replace_file(Path(url), data))
    return HttpUpload(access, url, data, name)
