"""Lock a run's folder, so that only one coordinator uses it at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from federated.errors import StoreError
from federated.system.file_locks import lock_file

__all__ = ["acquire", "check", "is_held", "release"]

# attempts to lock, shortly after each other, since `is_held` takes the lock for a moment
ATTEMPTS = 5
_held = set[int]()  # handles of this process's locks


def acquire(folder: Path) -> int:
    """Lock the run for this process and return the handle, for `release`. The system releases the
    lock when the process ends, also if it is killed. Raises StoreError if another process holds it.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for left in reversed(range(ATTEMPTS)):
        try:
            lock_file(handle, wait=False)
            break
        except OSError as error:
            if not left:
                os.close(handle)
                raise StoreError(
                    f"another coordinator holds run '{folder.name}' (lock {folder / 'lock'}): "
                    f"stop it first (coordinator stop {folder.name} --runs {folder.parent})"
                ) from error
            time.sleep(0.02)
    _held.add(handle)
    return handle


def release(handle: int) -> None:
    """Release a lock."""
    _held.discard(handle)
    os.close(handle)


def _close_inherited() -> None:
    """Close the handles that a fork inherits, which would hold the locks of a killed parent."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_inherited)


def check(handle: int, folder: Path) -> None:
    """Raise StoreError unless the handle's file is still the folder's lock. If it was removed, or
    the folder moved, another coordinator may have created and acquired a new one.
    """
    try:
        held = os.path.samestat(os.fstat(handle), (folder / "lock").stat())
    except OSError:
        held = False
    if not held:
        raise StoreError(
            f"lost the lock of run '{folder.name}': {folder / 'lock'} was removed or replaced, and "
            "another coordinator may hold the run; stop it, then resume this run"
        )


def is_held(folder: Path) -> bool:
    """Return True if a coordinator holds the run; False also if the lock cannot be read."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        lock_file(handle, wait=False, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
