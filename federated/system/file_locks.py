"""Lock open files, so that one process at a time uses what they stand for. A lock ends with its
process.
"""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["lock_file"]


def lock_file(handle: int, *, wait: bool, shared: bool = False) -> None:
    """Lock an open file or folder until its handle is closed.

    wait: wait for other processes; otherwise raises BlockingIOError if one holds it.
    shared: allow other shared locks.

    Raises OSError if the file system has no locks. Windows, which is not supported, locks nothing:
    two processes can then use the same folder.
    """
    if fcntl is None:
        return
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(handle, mode if wait else mode | fcntl.LOCK_NB)
