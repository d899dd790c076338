"""Where a run's releases lie: `runs/RUN/releases/VERSION/`, and their history beside them, written
whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coordinator.release.history import FORMAT, History, kept
from export import bundle, modelcard
from federated.errors import StoreError
from federated.runtime import files
from federated.wire.topics import VERSION

__all__ = ["Archive"]

HISTORY = "history.json"


class Archive:
    """The releases of one run. Several commands may hold one; `changing` lets one at a time change
    the history.
    """

    def __init__(self, runs: Path, run: str) -> None:
        """Raises StoreError where the folder cannot be made."""
        self.runs, self.run, self.folder = runs, run, runs / run / "releases"
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"releases of run '{run}' cannot be kept in {self.folder}: {error.strerror}"
            ) from error

    def path(self, version: str) -> Path:
        return self.folder / version

    def take(self, folder: Path) -> str:
        """Copies a release in, whole; the name of its version. Raises ExportError for what is no
        whole release, StoreError.
        """
        bundle.read(folder)
        name = bundle.version(folder)
        partial = self.folder / f"{name}.{os.getpid()}.part"
        try:
            partial.mkdir()
            card = [modelcard.NAME] if (folder / modelcard.NAME).is_file() else []
            for file in (
                *(file.name for file in bundle.files(bundle.manifest(folder))),
                bundle.MANIFEST,
                *card,
            ):
                shutil.copy(folder / file, partial)
            bundle.read(partial)  # what was copied is what was checked
            self._place(partial, name)
        except OSError as error:
            raise StoreError(
                f"release {folder} cannot be kept in {self.folder}: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return name

    def read(self) -> History:
        """Raises StoreError for a history that is damaged or foreign."""
        path = self.folder / HISTORY
        try:
            history = msgspec.json.decode(path.read_bytes(), type=History)
        except FileNotFoundError:
            return History(self.run)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{path}: not a history of releases: {error}") from error
        if (history.run, history.format) != (self.run, FORMAT) or not set(
            kept(history)
        ) <= history.items.keys():
            raise StoreError(
                f"{path}: expected a history of run '{self.run}', format {FORMAT}, "
                f"found '{history.run}', {history.format}"
            )
        return history

    def write(self, history: History) -> None:
        """Raises StoreError; the history before stays then."""
        try:
            files.write(
                self.folder / HISTORY,
                msgspec.json.format(msgspec.json.encode(history), indent=2) + b"\n",
            )
        except OSError as error:
            raise StoreError(
                f"the history of releases could not be written to {self.folder}: {error.strerror}"
            ) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the history for this process; waits for another that does."""
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def prune(self, history: History) -> None:
        """Removes versions that no agent may want again."""
        for path in self.folder.iterdir():
            if re.match(VERSION, path.name) and path.name not in kept(history):
                shutil.rmtree(path, ignore_errors=True)

    def _place(self, partial: Path, name: str) -> None:
        """Puts a version where it belongs; one of that name that is there already is the same, or
        damaged.
        """
        if self.path(name).exists():
            shutil.rmtree(self.path(name))
        partial.rename(self.path(name))
