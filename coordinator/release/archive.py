"""Store a run's releases in `runs/RUN/releases/VERSION/`, with their history beside them.

A version is named by the digest of its manifest, which holds those of its files.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from coordinator.release.history import ModelHistory, list_kept
from coordinator.release.history_file import HistoryFile
from export import modelcard, release_reader
from federated.errors import StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.wire.release_messages import Serving, Version
from federated.wire.topics import VERSION

__all__ = ["Archive"]


class Archive(HistoryFile[Version, Serving]):
    """The releases of one run, with their files."""

    def __init__(self, runs: Path, run: str) -> None:
        """Raises StoreError if the folder cannot be created."""
        super().__init__(runs / run / "releases", run, ModelHistory)
        self.runs = runs

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

    def prune(self, history: ModelHistory) -> None:
        """Delete the versions that no agent can need again."""
        wanted = list_kept(history)
        for path in self.folder.iterdir():
            if re.match(VERSION, path.name) and path.name not in wanted:
                shutil.rmtree(path, ignore_errors=True)
