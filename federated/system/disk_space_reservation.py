"""Reserve space on a disk."""

from __future__ import annotations

import os

__all__ = ["reserve_space"]

BLOCK = 1 << 20  # bytes


def reserve_space(handle: int, size: int) -> None:
    """Give an empty file `size` bytes that the disk cannot run out of later. Raises OSError if they
    do not fit.

    A system that cannot reserve them, such as macOS, gets zeros to write.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
        return
    zeros = bytes(min(BLOCK, size))
    for start in range(0, size, BLOCK):
        os.write(handle, zeros[: size - start])
