"""The files of one agent in one run: weights that came, updates that go, and what the device keeps
between rounds. No torch here.

    DIGEST.weights       weights that are whole; on their way, .part and .have (`wire.partial`)
    TRANSFER.update      what a task made
    TRANSFER.task        of which task it is, and in which pieces it was first offered; an update
                         without this file was never finished
    memory/              see `federated.training.device_memory`

A lasting spool outlives its process: the next one of this agent goes on with all of it but what was
never finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from federated.errors import StoreError, WireError
from federated.runtime import files
from federated.task import Task
from federated.training.device_memory import FOLDER
from federated.wire import envelope, messages
from federated.wire.partial import HAVE, PART

__all__ = ["AGE", "LIMIT", "InUse", "Kept", "Spool", "digest", "identity", "mapped"]

log = logging.getLogger(__name__)

LIMIT = 2 << 30  # bytes of weights and updates, beyond which the oldest go
AGE = 14 * 86400.0  # seconds after which what nobody asked for goes
FOREVER = 10 * 365 * 86400.0  # an age beyond this is a clock that was wrong, and says nothing
WEIGHTS, UPDATE, TASK = ".weights", ".update", ".task"
WHOLE = re.compile(rf"[0-9a-f]{{64}}{re.escape(WEIGHTS)}")
COMING = re.compile(rf"[0-9a-f]{{64}}{re.escape(WEIGHTS)}({re.escape(PART)}|{re.escape(HAVE)})")


class InUse(StoreError):
    """Another process holds the folder: an agent of the same name in the same run."""


@dataclass(frozen=True)
class Kept:
    """A finished update: of which task, in which pieces, and where it lies."""

    task: Task
    manifest: messages.Manifest
    path: Path


@dataclass(frozen=True)
class _Note:
    """What stands in a TRANSFER.task. run: the `identity` of the run that it was for; task,
    manifest: encoded messages.
    """

    run: str
    task: bytes
    manifest: bytes


msgspec.msgpack.Decoder(_Note)  # learnt here, by one thread (see `federated.wire.envelope`)


def identity(run: messages.Run) -> str:
    """What two cards share that are of one run; a coordinator that came back has another session
    and the same run.
    """
    return hashlib.sha256(envelope.encode(replace(run, session="none"))).hexdigest()


class Spool:
    """One agent's folder. A lasting one is held by one process at a time: `close` lets go."""

    def __init__(self, folder: Path, *, lasting: bool = False, limit: int = LIMIT) -> None:
        """limit: bytes. Raises InUse where another process holds the folder, StoreError where it
        cannot be written.
        """
        self.folder, self.lasting, self.limit = folder, lasting, limit
        try:
            files.make(folder, "what this device learned")
            self._lock = _hold(folder) if lasting else -1
        except OSError as error:
            raise StoreError(
                f"the spool {folder} cannot be used: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Lets another process have the folder. Closing twice is fine."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- weights ---------------------------------------------------------------------------------

    def weights(self, digest: str) -> Path:
        """Where weights of this sha256 lie, or are to."""
        return self.folder / f"{digest}{WEIGHTS}"

    def whole(self) -> OrderedDict[str, Path]:
        """Weights that an earlier process left, by digest, the latest last; nobody looked at their
        bytes since (see `sound`).
        """
        found = (
            [path for path in self.folder.iterdir() if WHOLE.fullmatch(path.name)]
            if self.lasting
            else []
        )
        return OrderedDict((path.stem, path) for path in sorted(found, key=_modified))

    @staticmethod
    def sound(path: Path) -> bool:
        """Whether weights still are what their name says."""
        try:
            return digest(path) == path.stem
        except OSError:
            return False

    def only(self, digest: str) -> None:
        """Forgets what came of all other weights that are not whole: one transfer is under way at a
        time.
        """
        for path in self.folder.glob(f"*{WEIGHTS}.*"):
            if not path.name.startswith(digest):
                _remove(path)

    # ---- updates ---------------------------------------------------------------------------------

    def update(self, transfer: str) -> Path:
        """Where the update of a transfer lies, or is to."""
        return self.folder / f"{transfer}{UPDATE}"

    def keep(self, kept: Kept, run: messages.Run) -> None:
        """Notes of what an update is, so that it is offered again after a restart. Where the disk
        takes no note, it only goes without.
        """
        if not self.lasting:
            return
        note = _Note(identity(run), envelope.encode(kept.task), envelope.encode(kept.manifest))
        try:
            files.write(kept.path.with_suffix(TASK), msgspec.msgpack.encode(note))
        except OSError as error:
            log.warning(
                "round %d: the update would not outlive a restart: %s: %s",
                kept.task.round,
                self.folder,
                error.strerror or error,
            )

    def left(self, run: messages.Run) -> Iterator[Kept]:
        """The finished updates of this run that an earlier process left, the oldest first; whatever
        else it left in this folder is removed.
        """
        if not self.lasting:
            return
        for path in sorted(self.folder.glob(f"*{TASK}"), key=_modified):
            kept = self._read(path, identity(run))
            if kept is not None:
                yield kept
            else:
                self.forget(path.stem)
        known = {path.stem for path in self.folder.glob(f"*{TASK}")}
        for path in self.folder.iterdir():
            own = path.suffix in (TASK, UPDATE) and path.stem in known
            if (
                not own
                and path.name != FOLDER
                and not WHOLE.fullmatch(path.name)
                and not COMING.fullmatch(path.name)
            ):
                _remove(path)

    def forget(self, transfer: str) -> None:
        """Removes an update and its note, the note first: without it the update is none."""
        for suffix in (TASK, UPDATE):
            _remove(self.folder / f"{transfer}{suffix}")

    # ---- bounds ----------------------------------------------------------------------------------

    def excess(self) -> int:
        """Bytes over the limit; the memory is not counted, it bounds itself."""
        return (
            max(
                0,
                sum(_size(path) for path in self.folder.iterdir() if path.name != FOLDER)
                - self.limit,
            )
            if self.lasting
            else 0
        )

    def clear(self) -> None:
        """Removes all but the memory: the run is over."""
        for path in self.folder.iterdir():
            if path.name != FOLDER:
                _remove(path)

    def tidy(self, others: Iterable[Path], now: float | None = None) -> None:
        """Removes what is older than AGE in this folder, and in folders of other runs that nobody
        holds. now: seconds of the wall clock.
        """
        now = time.time() if now is None else now
        _drop_old(self.folder, now)
        for folder in others:
            if folder == self.folder or not folder.is_dir():
                continue
            with contextlib.suppress(OSError, StoreError):
                handle = _hold(folder)
                try:
                    _drop_old(folder, now)
                    _drop_old(folder / FOLDER, now)
                finally:
                    os.close(handle)
                for empty in (folder / FOLDER, folder, folder.parent):
                    empty.rmdir()

    def _read(self, path: Path, run: str) -> Kept | None:
        """The update that a note is of, where both are whole."""
        update = path.with_suffix(UPDATE)
        try:
            note = msgspec.msgpack.decode(path.read_bytes(), type=_Note)
            task, manifest = envelope.decode(note.task), envelope.decode(note.manifest)
            whole = (
                isinstance(manifest, messages.Manifest)
                and _size(update) == manifest.size
                and digest(update) == manifest.sha256
            )
        except (OSError, ValueError, WireError) as error:  # msgspec's are ValueErrors
            log.warning("%s is passed over: %s", path, error)
            return None
        if (
            note.run != run
            or not isinstance(task, Task)
            or not isinstance(manifest, messages.Manifest)
            or manifest.transfer != path.stem
        ):
            log.info("%s is of another run, or of this one before it changed", path)
            return None
        if not whole:
            log.warning("%s is passed over: its update is damaged", path)
            return None
        return Kept(task, manifest, update)


def digest(path: Path) -> str:
    """The sha256 of a file, hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mapped(path: Path) -> memoryview:
    """A file's bytes, read as they are needed. Raises OSError, ValueError for an empty file."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _hold(folder: Path) -> int:
    """A lock on a folder until the handle is closed or the process ends. Raises InUse where another
    process has it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InUse(
            f"{folder} is in use by another agent of this name: give each agent its own "
            "--name, or its own --spool"
        ) from None
    return handle


def _drop_old(folder: Path, now: float) -> None:
    """Removes files that are too old by the wall clock, which may have been wrong when they were
    written: an age that cannot be starts anew.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        age = now - _modified(path)
        if not -60.0 <= age <= FOREVER:
            os.utime(path)
        elif age > AGE and path.is_file():
            log.info("%s is removed: nobody asked for it for %.0f days", path, age / 86400)
            _remove(path)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
