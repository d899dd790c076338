"""Choose when freed memory is returned to the system."""

from __future__ import annotations

from federated.system.c_library import find_function

__all__ = ["LARGE", "keep_chunks", "return_at_once", "return_free_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGE = 1 << 20  # bytes: larger blocks are returned as soon as they are free
KEPT = 16 << 20  # bytes: more than the chunks in flight of an update


def keep_chunks() -> None:
    """Keep the memory of up to `KEPT` bytes of freed chunks for the next ones. By default, the C
    library would return it to the system after each chunk and get zeroed pages for the next one,
    which takes longer than copying the chunk.
    """
    set_thresholds(LARGE, KEPT)


def return_at_once() -> None:
    """Return freed blocks of `LARGE` bytes to the system at once. By default, the C library would
    keep them, once for each thread.
    """
    set_thresholds(LARGE, LARGE)


def return_free_memory() -> None:
    """Return free memory to the system, of all threads (glibc; see malloc_trim(3))."""
    if (trim := find_function("malloc_trim")) is not None:
        trim(0)


def set_thresholds(large: int, kept: int) -> None:
    """Set the size of blocks that are returned at once, and the free bytes at the end of a thread's
    memory that are kept (glibc; see mallopt(3)). Other C libraries have no such options.
    """
    if (set_option := find_function("mallopt")) is not None:
        set_option(M_MMAP_THRESHOLD, large)
        set_option(M_TRIM_THRESHOLD, kept)
