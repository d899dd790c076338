"""What a run's folder needs of the file system: one holder at a time, and writing that is done when it says so."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from federated.errors import StoreError

__all__ = ["hold", "sync"]


def hold(folder: Path) -> int:
    """Holds the run for this process: the lock goes when the process does, however it ends. Raises StoreError where another process has it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreError(f"run '{folder.name}' is held by another coordinator (lock {folder / 'lock'})") from error
    return handle


def sync(path: Path) -> None:
    """Returns once the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
