"""Download a release from a broker into a folder: the manifest, then the files of one submodel,
each checked against its digest. Does not import torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from export import release_reader
from export.release_reader import File
from federated.errors import ExportError, StoreError, WireError, explain_os_errors
from federated.http_transfers.http_client import HttpAccess
from federated.runtime.atomic_files import sha256
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery, Link
from federated.wire.release_messages import Version
from federated.wire.retained_blobs import Download, RetainedBlob

__all__ = ["ReleaseDownload", "ReleaseIdentity", "locate_version", "strip_folder"]

log = logging.getLogger(__name__)

# bytes; protobuf limits an ONNX file with its weights to this size
MAX_BYTES = 2**31 - 1
MAX_MANIFEST_BYTES = 4 << 20
TRIES = 3  # attempts for a file whose complete download has the wrong digest


def locate_version(directory: Path, run: str, version: str) -> Path:
    """Return the folder of a version in a device's store. ExportError: the run's name is not a
    safe folder name.
    """
    if not re.search("[^.]", run):
        raise ExportError(f"expected a run whose name is a valid folder name, found '{run}'")
    return directory / run / version


def strip_folder(directory: Path, reason: str) -> str:
    """Remove the store's path from a reason that leaves this device."""
    return reason.replace(f"{directory}{os.sep}", "")


@dataclass(frozen=True)
class ReleaseIdentity:
    """What to download.

    run: run of the release
    version: as its card describes it
    submodel: whose files to download
    """

    run: str
    version: Version
    submodel: str


class ReleaseDownload:
    """Download one version into `folder`; files already there with the right digest are not
    downloaded again. `whole`: all files are complete.
    """

    def __init__(
        self,
        link: Link,
        wanted: ReleaseIdentity,
        folder: Path,
        now: float,
        http: HttpAccess = HttpAccess(),  # noqa: B008  # frozen
    ) -> None:
        """Start the download.

        now: seconds of some clock
        http: how this device reaches servers
        ExportError: the card is invalid. StoreError: the folder cannot be written.
        """
        self.version, self.submodel = wanted.version, wanted.submodel
        self.folder, self.whole = folder, False
        self._link, self._run, self._http = link, wanted.run, http
        self._missing = [File(release_reader.MANIFEST, self.version.size, self.version.sha256)]
        self._download: Download | None = None
        with explain_os_errors(StoreError, str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            self._start_next(now)

    def hear(self, delivery: Delivery, now: float) -> bool:
        """Process a delivery, and return whether it belongs to this release. ExportError: a file
        is not the promised one. Also raises StoreError.
        """
        if delivery.topic in (LINK_DOWN, LINK_UP) and self._download is not None:
            self._download.resume(now) if delivery.topic == LINK_UP else self._download.save()
        place = topics.parse(delivery.topic)
        if (
            place is None
            or place.way != "release"
            or place.kind == "card"
            or place.run != self._run
        ):
            return False
        if (
            self._download is None
            or (place.version, place.file) != (self.version.name, self._missing[0].name)
            or not delivery.payload
        ):
            return True  # belongs to a file that is already complete
        with self._handle_errors(delivery.topic):
            message = envelope.decode(delivery.payload)
            if isinstance(message, messages.Manifest | messages.Chunk) and self._download.take(
                message, now
            ):
                self._start_next(now)
        return True

    def tick(self, now: float) -> None:
        """Request missing chunks again. Raises as `hear`."""
        if self._download is not None:
            with self._handle_errors(self._download.blob.base):
                if self._download.tick(now):
                    self._start_next(now)

    @contextmanager
    def _handle_errors(self, topic: str) -> Iterator[None]:
        """Ignore what is damaged, or part of another file: it is requested again. Raises
        ExportError after several wrong digests, and StoreError.
        """
        try:
            yield
        except WireError as error:
            # `error` itself would keep the file's memory alive.
            log.warning("ignored what came of %s: %s", topic, str(error))
            if self._download is not None and self._download.digest_failures >= TRIES:
                raise ExportError(
                    f"{self._missing[0].name} of version {self.version.name}: {error}"
                ) from None
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def close(self) -> None:
        """Stop listening. Received data is kept for the next download."""
        if self._download is not None:
            self._download.close()
            self._download = None

    def _start_next(self, now: float) -> None:
        """Request the next missing file."""
        self._download = None
        while self._missing and self._is_complete(self._missing[0]):
            if self._missing.pop(0).name == release_reader.MANIFEST:
                self._missing += self._list_files()
        if not self._missing:
            self.whole = True
            return
        file = self._missing[0]
        most = MAX_MANIFEST_BYTES if file.name == release_reader.MANIFEST else MAX_BYTES
        if not 0 < file.size <= most:
            raise ExportError(
                f"{file.name} of version {self.version.name}: expected 1 to {most} "
                f"bytes, found {file.size}"
            )
        base = topics.release(self._run, self.version.name, file.name)
        blob = RetainedBlob(base, file.sha256, file.size)
        self._download = Download(self._link, blob, self.folder / file.name, now, http=self._http)

    def _is_complete(self, file: File) -> bool:
        path = self.folder / file.name
        return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256

    def _list_files(self) -> tuple[File, ...]:
        """Return the files of the submodel. ExportError: the manifest does not match the card."""
        found = release_reader.read_manifest(self.folder)
        if (found.run, found.round) != (self._run, self.version.round):
            raise ExportError(
                f"{self.folder}: expected round {self.version.round} of '{self._run}', "
                f"found {found.round} of '{found.run}'"
            )
        if self.submodel not in {entry.submodel for entry in found.submodels}:
            raise ExportError(
                f"{self.folder}: the card promises submodel '{self.submodel}', but the manifest "
                "has none of that name"
            )
        return release_reader.list_files(found, self.submodel)
