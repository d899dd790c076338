"""A release on its way from a broker into a folder: its manifest, then the files of one submodel,
each checked by its digest. No torch here.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from export import bundle
from export.bundle import File
from export.verify import sha256
from federated.errors import ExportError, StoreError, WireError
from federated.wire import envelope, messages, topics
from federated.wire.delivery_queue import LINK_DOWN, LINK_UP, Delivery
from federated.wire.link import Link
from federated.wire.release_files import Release, Version
from federated.wire.transfer import Download, RetainedBlob

__all__ = ["LARGEST", "Arriving", "folder_of", "target", "within"]

log = logging.getLogger(__name__)

# bytes; no ONNX file with its weights inside can be larger (a limit of protobuf)
LARGEST = 2**31 - 1
LARGEST_MANIFEST = 4 << 20
TRIES = 3  # of a file that comes whole and is not what was promised


def target(card: Release, wanted: str, submodel: str | None = None) -> tuple[Version, str] | None:
    """The version that a card means for an agent, and the submodel of it: the one that it names, or
    its own. None where there is none.

    wanted: an agent's name, or instead a submodel's, which is that of the stable version.
    """
    version = card.canary if card.canary is not None and wanted in card.agents else card.stable
    if version is None:
        return None
    chosen = submodel or version.assignment.get(wanted) or wanted
    return (version, chosen) if chosen in version.submodels else None


def folder_of(directory: Path, run: str, version: str) -> Path:
    """Where a version of a run lies in a device's store. Raises ExportError for a run whose name is
    a way out of it.
    """
    if not re.search("[^.]", run):
        raise ExportError(f"expected a run with a name for a folder, found '{run}'")
    return directory / run / version


def within(directory: Path, said: str) -> str:
    """What leaves this device of a reason: files by their place in the store, not by where that
    lies.
    """
    return said.replace(f"{directory}{os.sep}", "")


class Arriving:
    """One version, on its way into `folder`; what lies there with the right digest is not fetched
    again. `whole`: all of it is there.
    """

    def __init__(
        self, link: Link, run: str, version: Version, submodel: str, folder: Path, now: float
    ) -> None:
        """now: seconds of some clock. Raises ExportError for what cannot be, StoreError where there
        is no room.
        """
        self.version, self.submodel, self.folder, self.whole = version, submodel, folder, False
        self._link, self._run = link, run
        self._missing = [File(bundle.MANIFEST, version.size, version.sha256)]
        self._download: Download | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._go_on(now)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror or error}") from error

    def hear(self, delivery: Delivery, now: float) -> bool:
        """Takes a delivery of this release; True for one that was. Raises ExportError for a file
        that is not what was promised, StoreError.
        """
        if delivery.topic in (LINK_DOWN, LINK_UP) and self._download is not None:
            self._download.restored(
                now
            ) if delivery.topic == LINK_UP else self._download.interrupted()
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
            return True  # of a file that came already
        try:
            message = envelope.decode(delivery.payload)
            if isinstance(message, messages.Manifest | messages.Chunk) and self._download.hear(
                message, now
            ):
                self._go_on(now)
        except WireError as error:
            # damaged, or of another file: what is missing is asked for again
            # the error itself would hold the file's memory
            log.warning("passed over a piece of %s: %s", delivery.topic, str(error))
            if self._download is not None and self._download.spoilt >= TRIES:
                raise ExportError(
                    f"{self._missing[0].name} of version {self.version.name}: {error}"
                ) from None
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error
        return True

    def tick(self, now: float) -> None:
        """Asks again for what did not come."""
        if self._download is not None:
            self._download.tick(now)

    def close(self) -> None:
        """Stops listening. What came stays, for the next time."""
        if self._download is not None:
            self._download.close()
            self._download = None

    def _go_on(self, now: float) -> None:
        """Asks for the next file that is not here."""
        self._download = None
        while self._missing and self._here(self._missing[0]):
            if self._missing.pop(0).name == bundle.MANIFEST:
                self._missing += self._listed()
        if not self._missing:
            self.whole = True
            return
        file = self._missing[0]
        most = LARGEST_MANIFEST if file.name == bundle.MANIFEST else LARGEST
        if not 0 < file.size <= most:
            raise ExportError(
                f"{file.name} of version {self.version.name}: expected 1 to {most} "
                f"bytes, found {file.size}"
            )
        base = topics.release(self._run, self.version.name, file.name)
        blob = RetainedBlob(base, file.sha256, file.size)
        self._download = Download(self._link, blob, self.folder / file.name, now)

    def _here(self, file: File) -> bool:
        path = self.folder / file.name
        return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256

    def _listed(self) -> tuple[File, ...]:
        """The files of the submodel. Raises ExportError for a manifest of something else than the
        card says.
        """
        found = bundle.manifest(self.folder)
        if (found.run, found.round) != (self._run, self.version.round):
            raise ExportError(
                f"{self.folder}: expected round {self.version.round} of '{self._run}', "
                f"found {found.round} of '{found.run}'"
            )
        if self.submodel not in {entry.submodel for entry in found.submodels}:
            raise ExportError(
                f"{self.folder}: expected submodel '{self.submodel}' as the card says, "
                "found none of that name"
            )
        return bundle.files(found, self.submodel)
