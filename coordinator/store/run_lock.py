"""What a run's folder needs of the file system: one holder at a time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from federated.errors import StoreError

__all__ = ["held", "hold"]

# tries for the lock, a moment apart: who only looks whether it is held has it for a moment
GLANCES = 5


def hold(folder: Path) -> int:
    """Holds the run for this process: the lock goes when the process does, however it ends. Raises
    StoreError where another process has it.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for left in reversed(range(GLANCES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if not left:
                os.close(handle)
                raise StoreError(
                    f"run '{folder.name}' is held by another coordinator (lock {folder / 'lock'})"
                ) from error
            time.sleep(0.02)
    return handle


def held(folder: Path) -> bool:
    """Whether a coordinator holds the run at this moment; False too where its lock may not be
    read.
    """
    try:
        handle = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
