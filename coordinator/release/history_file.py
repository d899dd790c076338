"""Store the history of staged releases in one file. Every write is atomic and durable, and the file
holds its own digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic

import msgspec

from coordinator.release.history import (
    FORMAT,
    HISTORY,
    WITHOUT_DIGEST,
    History,
    ReportType,
    VersionType,
    compute_digest,
    is_intact,
    list_kept,
)
from federated.errors import StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.file_locks import lock_file

__all__ = ["HistoryFile"]


class HistoryFile(Generic[VersionType, ReportType]):
    """The history of one run's releases. Several processes may open one; `lock` lets one at a time
    change it.
    """

    def __init__(self, folder: Path, run: str, type: Any) -> None:
        """folder: its folder, which is created. type: of the history. Raises StoreError."""
        self.folder, self.run, self._type = folder, run, type
        problem = f"cannot store releases of run '{run}' in {folder}"
        with explain_os_errors(StoreError, problem):
            folder.mkdir(exist_ok=True)

    def read(self) -> History[VersionType, ReportType]:
        """Read the history. Raises StoreError if it is damaged or belongs to another run."""
        path = self.folder / HISTORY
        try:
            history = msgspec.json.decode(path.read_bytes(), type=self._type)
        except FileNotFoundError:
            return History(self.run)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{path}: not a history of releases: {error}") from error
        if not is_intact(history):
            raise StoreError(
                f"{path} is damaged: its digest differs; restore it from a backup, or remove it to "
                "start a new history"
            )
        known = history.run == self.run and history.format in (WITHOUT_DIGEST, FORMAT)
        if not known or not set(list_kept(history)) <= history.items.keys():
            raise StoreError(
                f"{path}: expected a history of run '{self.run}', format {FORMAT}, "
                f"found '{history.run}', {history.format}"
            )
        return replace(history, digest="", format=FORMAT)

    def write(self, history: History[VersionType, ReportType]) -> None:
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
