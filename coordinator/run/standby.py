"""Wait until a run has no coordinator, or its coordinator gives no sign of life, and then take over
the run.

Coordinator and standby share the run's folder. A coordinator that ends, however it does, releases
the lock of the folder, and the standby resumes the run as a restart would. From a coordinator that
is suspended, or lost its connection to the storage, the standby takes the lock away. If that
coordinator wakes up, it can neither change the run's folder (`displace`) nor lead the agents, who
ignore its epoch. A hanging main loop is the service manager's to notice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.settings.config import Config
from coordinator.store import run_lock
from coordinator.store.database import COPY
from coordinator.store.run_folders import DATABASE, make_missing_error
from federated.errors import StoreError, Superseded, UsageError, explain_os_errors
from federated.system.disk_sync import sync

__all__ = ["check_standby", "displace", "wait_to_lead"]

log = logging.getLogger(__name__)

POLL = 0.5  # seconds between two looks at the lock


def check_standby(config: Config) -> None:
    """Raise UsageError for a configuration that a standby cannot have."""
    if not config.name:
        raise UsageError("--standby needs the name of a run: add --name NAME")
    if not config.broker.url:
        raise UsageError(
            "--standby needs a broker that both coordinators reach, and that does not end with one "
            "of them: add --broker URL"
        )


def wait_to_lead(folder: Path, lease: float, ping: Callable[[], None]) -> bool:
    """Wait until this process may lead a run. Return False if the run ended instead: it finished,
    or was stopped on request.

    folder: of the run. lease: seconds without a sign of life of the coordinator after which it is
    displaced. ping: called at every look.
    Raises StoreError if there is no such run, or if the storage fails.
    """
    if not (folder / DATABASE).exists():
        raise make_missing_error(folder)
    last, since, waited = (0, 0), time.monotonic(), False
    with explain_os_errors(StoreError, f"cannot read the lock of run '{folder.name}'"):
        while run_lock.is_held(folder):
            waited = True
            ping()
            now = time.monotonic()  # before reading, in case this process is suspended meanwhile
            try:
                sign = run_lock.read_sign(folder)
            except FileNotFoundError:  # the coordinator deleted a run without a round
                break
            if sign != last:
                last, since = sign, now
            elif now - since >= lease:
                log.warning(
                    "the coordinator of run '%s' gave no sign of life for %.0f s",
                    folder.name,
                    now - since,
                )
                with contextlib.suppress(Superseded):  # another standby was faster
                    displace(folder)
                    return True
            time.sleep(POLL)
        if not (folder / DATABASE).exists():
            raise StoreError(
                f"run '{folder.name}' was deleted from {folder.parent} while this standby waited: "
                "a run that ends before its first round is not kept"
            )
        return not (waited and run_lock.has_ended(folder))


def displace(folder: Path) -> None:
    """Take the lock of a run away from its coordinator, and ensure that this changes nothing in the
    folder even if it wakes up in the middle of a write.

    It checks its lock after it opens a file, and before it moves the file into place. The files
    that it keeps open are replaced by copies here. Unfinished ones are removed when the run is
    opened, and what it opens later fails the check. Raises StoreError; Superseded if another
    standby took the lock meanwhile.
    """
    with explain_os_errors(StoreError, f"cannot take over run '{folder.name}' in {folder}"):
        lock = run_lock.replace(folder)
        try:
            with run_lock.renewing(lock, folder):
                names = [DATABASE, f"{DATABASE}-wal", COPY]
                for path in *(folder / name for name in names), *folder.glob("journal-*.log"):
                    if path.exists():
                        replace_by_copy(path, lock)
                run_lock.check(lock, folder)
                (folder / f"{DATABASE}-shm").unlink(missing_ok=True)  # SQLite makes it anew
                sync(folder)
        finally:
            run_lock.release(lock)


def replace_by_copy(path: Path, lock: int) -> None:
    """Replace a file by a copy, so that those who have opened it no longer change it. Raises
    OSError; Superseded if another standby took the lock meanwhile.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")
    try:
        shutil.copy2(path, part)
        sync(part)
        run_lock.check(lock, path.parent)
        part.replace(path)
    except OSError:
        run_lock.check(lock, path.parent)  # the other standby removes unfinished files
        raise
    finally:
        part.unlink(missing_ok=True)  # frees the space on a full disk
