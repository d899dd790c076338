"""Lock a run's folder, so that only one coordinator uses it at a time. A standby coordinator can
take the lock away from one that gives no sign of life.

The holder changes the modification time of the lock file every RENEWAL seconds. A standby compares
these times only with each other, so the clocks of two machines may differ. It takes the lock away
by replacing the file: `check`, which precedes each write, then fails in the earlier holder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from federated.errors import StoreError, Superseded
from federated.system.file_locks import lock_file

__all__ = [
    "LEASE",
    "SHORTEST",
    "Held",
    "acquire",
    "check",
    "has_ended",
    "is_held",
    "is_present",
    "mark_end",
    "read_holder",
    "read_sign",
    "release",
    "renewing",
    "replace",
]

# attempts to lock, shortly after each other, since `is_held` takes the lock for a moment
ATTEMPTS = 5
RENEWAL = 5.0  # seconds between two signs of life
LEASE = 30.0  # seconds without one after which a standby takes the lock away by default
SHORTEST = 3 * RENEWAL  # the least such time: one late sign must not count as the end
ENDED = b"ended\n"  # content of the lock file of a run that has finished, or was stopped on request
_held = set[int]()  # handles of this process's locks


class Held(StoreError):
    """Another process holds the lock."""


def acquire(folder: Path) -> int:
    """Lock the run for this process and return the handle, for `release`. The system releases the
    lock when the process ends, also if it is killed. Raises Held if another process holds it.
    """
    path = folder / "lock"
    for _ in range(ATTEMPTS):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock_file(handle, wait=False)
        except OSError as error:
            os.close(handle)
            cause: OSError | None = error
        else:
            if is_present(handle, folder):
                os.ftruncate(handle, 0)
                _renew(handle, folder)
                _held.add(handle)
                return handle
            os.close(handle)  # the file was replaced or removed meanwhile
            cause = None
        time.sleep(0.02)
    raise Held(
        f"another coordinator holds run '{folder.name}' (lock {path}): stop it first (coordinator "
        f"stop {folder.name} --runs {folder.parent})"
    ) from cause


def replace(folder: Path) -> int:
    """Take the lock away from its holder and return the handle of the new one. Raises OSError;
    Superseded if another standby was faster.
    """
    part = folder / f"lock.{secrets.token_hex(3)}.part"
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        lock_file(handle, wait=False)
        part.replace(folder / "lock")
    except FileNotFoundError as error:
        os.close(handle)
        raise Superseded(
            f"another coordinator opened run '{folder.name}': it removed the unfinished {part}"
        ) from error
    except OSError:
        os.close(handle)
        part.unlink(missing_ok=True)
        raise
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


@contextlib.contextmanager
def renewing(handle: int, folder: Path) -> Iterator[None]:
    """Give signs of life of the lock's holder, from a thread of their own."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWAL):
            with contextlib.suppress(OSError):  # a disk that fails is reported by those who write
                _renew(handle, folder)

    thread = threading.Thread(target=renew, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _renew(handle: int, folder: Path) -> None:
    os.utime(handle if os.utime in os.supports_fd else folder / "lock")


def check(handle: int, folder: Path) -> None:
    """Raise unless the handle's file is still the folder's lock: Superseded if another coordinator
    replaced it, StoreError if it was removed, or the folder moved.
    """
    if is_present(handle, folder):
        return
    if (folder / "lock").exists():
        raise Superseded(
            f"another coordinator took over run '{folder.name}': it replaced {folder / 'lock'}, "
            "because this one gave no sign of life; this one writes nothing more"
        )
    raise StoreError(
        f"lost the lock of run '{folder.name}': {folder / 'lock'} was removed, and another "
        "coordinator may hold the run; stop it, then resume this run"
    )


def is_present(handle: int, folder: Path) -> bool:
    """Return True if the handle's file is the folder's lock."""
    try:
        # not pathlib, which takes five times as long: this precedes each event in the journal
        return os.path.samestat(os.fstat(handle), os.stat(f"{folder}/lock"))  # noqa: PTH116
    except OSError:
        return False


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


def read_sign(folder: Path) -> tuple[int, int]:
    """Return what changes with each sign of life of the lock's holder. Raises OSError."""
    handle = os.open(folder / "lock", os.O_RDONLY)  # NFS reads the time anew for an opened file
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    return found.st_ino, found.st_mtime_ns


def read_holder(folder: Path) -> int:
    """Return what identifies the lock of the present holder. Raises OSError."""
    return read_sign(folder)[0]


def mark_end(handle: int) -> None:
    """Note that the run has finished or was stopped on request, so that no standby resumes it.
    Raises OSError.
    """
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, ENDED)


def has_ended(folder: Path) -> bool:
    """Return True if the last holder left `mark_end`. Raises OSError."""
    return (folder / "lock").read_bytes() == ENDED
