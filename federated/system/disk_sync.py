"""Wait until files are on disk."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from federated.system.c_library import find_function

__all__ = ["begin_sync", "sync"]

SYNC_FILE_RANGE_WRITE = 2


def sync(path: Path) -> None:
    """Wait until a file's content or a folder's names are on disk. Raises OSError.

    Windows opens no folder, and its file systems keep names in a journal of their own.
    """
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)  # Windows syncs what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def begin_sync(path: Path) -> None:
    """Let the disk begin to write what a file holds, so that a later `sync` waits for less. Only
    Linux can. Raises OSError if the file cannot be opened.
    """
    write = find_function("sync_file_range")
    if write is not None:
        handle = os.open(path, os.O_RDONLY)
        try:
            write(handle, ctypes.c_int64(0), ctypes.c_int64(0), SYNC_FILE_RANGE_WRITE)
        finally:
            os.close(handle)
