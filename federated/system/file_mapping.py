"""Map files into memory, and release what was read of them."""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["map_file", "release_pages"]


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file, which are read on demand. Raises OSError, and ValueError for an
    empty file.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def release_pages(view: memoryview, size: int) -> None:
    """Release the memory that the first `size` bytes of a mapped file take in this process. They
    are read again on demand. Does nothing for other memory, and on Windows.
    """
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED, 0, size)
