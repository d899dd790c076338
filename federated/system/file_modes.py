"""Read the permissions of a file."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["read_mode"]


def read_mode(path: Path) -> int:
    """Return the permission bits of a file or folder. Windows has access lists instead, which are
    not read: only the owner's bits are returned there. Raises OSError.
    """
    return path.stat().st_mode & (0o700 if os.name == "nt" else 0o777)
