"""Wait until files are on disk."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync"]


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
