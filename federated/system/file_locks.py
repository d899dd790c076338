"""Lock files and folders, so that one process at a time uses what they stand for. A lock ends with
its process.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None  # type: ignore[assignment]

__all__ = ["lock_file", "lock_path", "unlock_path"]

BYTE = 1 << 30  # number of the byte that Windows locks: beyond all content, which stays readable
PAUSE = 0.05  # seconds between two attempts


def lock_file(handle: int, *, wait: bool, shared: bool = False) -> None:
    """Lock an open file or folder until its handle is closed.

    wait: wait for other processes; otherwise raises BlockingIOError if one holds it.
    shared: allow other shared locks; on Windows, all locks exclude each other.

    Raises OSError if the file system has no locks.
    """
    if fcntl is None:
        _lock_byte(handle, wait=wait)
        return
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(handle, mode if wait else mode | fcntl.LOCK_NB)


def lock_path(path: Path) -> int:
    """Return a handle that locks a file, which is created if needed, or a folder, until
    `unlock_path` or the end of the process. Raises BlockingIOError if another process holds the
    lock, OSError if the file system has no locks.

    Windows locks a file beside it, since it opens no folder, and nobody could rename or remove an
    open file there.
    """
    place = _locate_lock(path)
    folder = place.is_dir()
    handle = os.open(place, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        lock_file(handle, wait=False)
        # the last holder may have removed it meanwhile
        if os.fstat(handle).st_ino != place.stat().st_ino:
            raise BlockingIOError(f"{place} was removed")
    except OSError:
        os.close(handle)
        raise
    return handle


def unlock_path(path: Path, handle: int) -> None:
    """Release the lock of a file or folder."""
    os.close(handle)
    if (place := _locate_lock(path)) != path:
        with contextlib.suppress(OSError):  # another process holds it by now
            place.unlink()


def _locate_lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock") if os.name == "nt" else path


def _lock_byte(handle: int, *, wait: bool) -> None:
    place = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, BYTE, os.SEEK_SET)
    try:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
                return
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(*error.args) from error
                time.sleep(PAUSE)
    finally:
        os.lseek(handle, place, os.SEEK_SET)
