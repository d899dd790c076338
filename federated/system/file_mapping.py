"""Map files into memory."""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["map_file"]


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file, which are read on demand. Raises OSError, and ValueError for an
    empty file.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
