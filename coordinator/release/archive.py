"""Store a run's releases in `runs/RUN/releases/VERSION/`, with their history beside them.

Every write is atomic and durable. A version is named by the digest of its manifest, which holds
those of its files; the history holds its own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from coordinator.release.history import FORMAT, HISTORY, History, compute_digest, list_kept
from export import modelcard, release_reader
from federated.errors import StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.file_locks import lock_file
from federated.wire.topics import VERSION

__all__ = ["Archive"]


class Archive:
    """The releases of one run. Several processes may open one; `lock` lets one at a time change the
    history.
    """

    def __init__(self, runs: Path, run: str) -> None:
        """Raises StoreError if the folder cannot be created."""
        self.runs, self.run, self.folder = runs, run, runs / run / "releases"
        problem = f"cannot store releases of run '{run}' in {self.folder}"
        with explain_os_errors(StoreError, problem):
            self.folder.mkdir(exist_ok=True)

    def path(self, version: str) -> Path:
        return self.folder / version

    def check(self, version: str) -> Path:
        """Return the folder of a version. Raises StoreError if it has another manifest now."""
        folder = self.path(version)
        if (found := release_reader.read_version(folder)) != version:
            raise StoreError(
                f"{folder / release_reader.MANIFEST} is damaged: expected a sha256 of "
                f"{version}..., found {found}...; restore it from a backup, or release the round "
                "again"
            )
        return folder

    def add(self, folder: Path) -> str:
        """Copy a complete release into the archive and return its version. Raises ExportError for
        an incomplete or damaged release, StoreError.
        """
        release, name = release_reader.read(folder), release_reader.read_version(folder)
        partial = self.folder / f"{name}.{os.getpid()}.part"
        copied = [
            release_reader.MANIFEST,
            *(file.name for file in release_reader.list_files(release)),
        ]
        if (folder / modelcard.NAME).is_file():
            copied.append(modelcard.NAME)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, partial, ignore_errors=True)
            problem = f"cannot store release {folder} in {self.folder}"
            stack.enter_context(explain_os_errors(StoreError, problem))
            partial.mkdir()
            for file in copied:
                shutil.copy(folder / file, partial)
            release_reader.read(partial)  # verify the copy itself
            # an existing version of this name is the same, or damaged
            atomic_files.replace_folder(partial, self.path(name))
        return name

    def read(self) -> History:
        """Read the history. Raises StoreError if it is damaged or belongs to another run."""
        path = self.folder / HISTORY
        try:
            history = msgspec.json.decode(path.read_bytes(), type=History)
        except FileNotFoundError:
            return History(self.run)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{path}: not a history of releases: {error}") from error
        if history.digest != compute_digest(history):
            raise StoreError(
                f"{path} is damaged: its digest differs; restore it from a backup, or remove it to "
                "start a new history"
            )
        if (history.run, history.format) != (self.run, FORMAT) or not set(
            list_kept(history)
        ) <= history.items.keys():
            raise StoreError(
                f"{path}: expected a history of run '{self.run}', format {FORMAT}, "
                f"found '{history.run}', {history.format}"
            )
        return replace(history, digest="")

    def write(self, history: History) -> None:
        """Replace the history. Raises StoreError, and then leaves the old one in place."""
        history = replace(history, digest=compute_digest(history))
        text = msgspec.json.format(msgspec.json.encode(history), indent=2) + b"\n"
        problem = f"cannot write the history of releases to {self.folder}"
        with explain_os_errors(StoreError, problem):
            atomic_files.write(self.folder / HISTORY, text)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the history for this process, waiting for others."""
        with (self.folder / "lock").open("w") as file:
            lock_file(file.fileno(), wait=True)
            yield

    def prune(self, history: History) -> None:
        """Delete the versions that no agent can need again."""
        wanted = list_kept(history)
        for path in self.folder.iterdir():
            if re.match(VERSION, path.name) and path.name not in wanted:
                shutil.rmtree(path, ignore_errors=True)
