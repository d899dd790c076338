"""Store the files of one agent in one run: weights, training graphs, updates, and the memory kept
between rounds.

    DIGEST.weights       downloaded weights; while incomplete, .part and .have (`wire.partial_file`)
    DIGEST.graph         downloaded training graphs, likewise
    TRANSFER.update      the update of a task
    TRANSFER.task        its task, and the chunks in which it was first offered; an update without
                         this file is incomplete
    coordinator.epoch    the highest epoch of the run's coordinators, and the sha256 of its digits
    memory/              see `federated.training.state_between_rounds`

A lasting spool outlives its process: the agent's next process resumes everything but incomplete
updates.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from federated.errors import StoreError, WireError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.disk_sync import sync
from federated.system.file_locks import lock_path, unlock_path
from federated.task import Task
from federated.training.state_between_rounds import FOLDER
from federated.wire import envelope, messages
from federated.wire.partial_file import HAVE, PART

__all__ = ["AGE", "GRAPH", "LIMIT", "InUse", "Spool", "SpooledUpdate", "identify_run"]

log = logging.getLogger(__name__)

LIMIT = 2 << 30  # bytes of weights, graphs and updates, beyond which the oldest are removed
AGE = 14 * 86400.0  # seconds after which an unused file is removed
FOREVER = 10 * 365 * 86400.0  # a larger age means that the clock was wrong
WEIGHTS, GRAPH, UPDATE, TASK = ".weights", ".graph", ".update", ".task"
EPOCH = "coordinator.epoch"
WHOLE = re.compile(rf"[0-9a-f]{{64}}({re.escape(WEIGHTS)}|{re.escape(GRAPH)})")
INCOMPLETE = re.compile(rf"({WHOLE.pattern})({re.escape(PART)}|{re.escape(HAVE)})")


class InUse(StoreError):
    """Another process uses the folder: an agent with the same name in the same run."""


@dataclass(frozen=True)
class SpooledUpdate:
    """A finished update.

    task: its task.
    manifest: the transfer in which it was offered.
    path: its file.
    """

    task: Task
    manifest: messages.Manifest
    path: Path


@dataclass(frozen=True)
class _Note:
    """The content of a TRANSFER.task.

    run: identity of its run (see `identify_run`).
    task, manifest: encoded messages.
    digest: sha256 of the others; empty if an earlier version wrote it.
    """

    run: str
    task: bytes
    manifest: bytes
    digest: str = ""

    @property
    def expected_digest(self) -> str:
        return hashlib.sha256(
            msgspec.msgpack.encode((self.run, self.task, self.manifest))
        ).hexdigest()


msgspec.msgpack.Decoder(_Note)  # prepares the type in one thread (see `federated.wire.envelope`)


def identify_run(run: messages.Run) -> str:
    """Return a digest of a run's card. It stays the same if only the coordinator restarts, which
    changes the session.
    """
    return hashlib.sha256(envelope.encode(replace(run, session="none"))).hexdigest()


class Spool:
    """The folder of one agent. A lasting one belongs to one process at a time, until `close`."""

    def __init__(self, folder: Path, *, lasting: bool = False, limit: int = LIMIT) -> None:
        """limit: bytes. Raises InUse if another process uses the folder, StoreError if it cannot be
        written.
        """
        self.folder, self.lasting, self.limit = folder, lasting, limit
        with explain_os_errors(StoreError, f"cannot use the spool {folder}"):
            atomic_files.make_private(folder, "what this device learned")
            self._lock = _lock(folder) if lasting else -1

    def close(self) -> None:
        """Let other processes use the folder. Closing twice is fine."""
        if self._lock >= 0:
            unlock_path(self.folder, self._lock)
            self._lock = -1

    # ---- weights and graphs ----------------------------------------------------------------------

    def weights_path(self, digest: str) -> Path:
        """Return the path of weights with this sha256."""
        return self.folder / f"{digest}{WEIGHTS}"

    def graph_path(self, digest: str) -> Path:
        """Return the path of a training graph with this sha256."""
        return self.folder / f"{digest}{GRAPH}"

    def list_downloads(self) -> OrderedDict[str, Path]:
        """Return the weights and graphs that an earlier process left, by digest, the latest last.
        Their bytes are not verified (see `is_intact`).
        """
        found = (
            [path for path in self.folder.iterdir() if WHOLE.fullmatch(path.name)]
            if self.lasting
            else []
        )
        return OrderedDict((path.stem, path) for path in sorted(found, key=_modified))

    @staticmethod
    def is_intact(path: Path) -> bool:
        """Return True if weights or a graph have the digest that their name states."""
        try:
            return atomic_files.sha256(path) == path.stem
        except OSError:
            return False

    def remove_partial(self, keep: Collection[str]) -> None:
        """Remove incomplete downloads, except those with the digests `keep`."""
        for kind in (WEIGHTS, GRAPH):
            for path in self.folder.glob(f"*{kind}.*"):
                if path.name.partition(".")[0] not in keep:
                    _remove(path)

    # ---- updates ---------------------------------------------------------------------------------

    def update_path(self, transfer: str) -> Path:
        """Return the path of the update of a transfer."""
        return self.folder / f"{transfer}{UPDATE}"

    def note(self, update: SpooledUpdate, run: messages.Run) -> None:
        """Record an update, so that it is offered again after a restart. If the disk is full, only
        a restart loses the update.
        """
        if not self.lasting:
            return
        note = _Note(
            identify_run(run), envelope.encode(update.task), envelope.encode(update.manifest)
        )
        try:
            sync(update.path)
            note = replace(note, digest=note.expected_digest)
            atomic_files.write(update.path.with_suffix(TASK), msgspec.msgpack.encode(note))
        except OSError as error:
            log.warning(
                "round %d: a restart would lose the update: cannot write to %s: %s",
                update.task.round,
                self.folder,
                error.strerror or error,
            )

    def load_updates(self, run: messages.Run) -> Iterator[SpooledUpdate]:
        """Yield the finished updates of this run that an earlier process left, the oldest first.
        Other files of that process are removed, except downloads, the epoch and the memory.
        """
        if not self.lasting:
            return
        for path in sorted(self.folder.glob(f"*{TASK}"), key=_modified):
            update = self._read(path, identify_run(run))
            if update is not None:
                yield update
            else:
                self.remove_update(path.stem)
        known = {path.stem for path in self.folder.glob(f"*{TASK}")}
        for path in self.folder.iterdir():
            own = path.suffix in (TASK, UPDATE) and path.stem in known
            if (
                not own
                and path.name not in (FOLDER, EPOCH)
                and not WHOLE.fullmatch(path.name)
                and not INCOMPLETE.fullmatch(path.name)
            ):
                _remove(path)

    def remove_update(self, transfer: str) -> None:
        """Remove an update. Its note goes first, since without it the update counts as
        incomplete.
        """
        if self.lasting:  # others have no note
            _remove(self.folder / f"{transfer}{TASK}")
        _remove(self.update_path(transfer))

    # ---- the epoch -------------------------------------------------------------------------------

    def note_epoch(self, epoch: int) -> None:
        """Record the highest epoch of the run's coordinators. If the disk is full, only a restart
        forgets it.
        """
        if not self.lasting:
            return
        try:
            atomic_files.write(self.folder / EPOCH, f"{epoch} {_digest(str(epoch))}".encode())
        except OSError as error:
            log.warning(
                "a restart would forget which coordinator leads: cannot write to %s: %s",
                self.folder,
                error.strerror or error,
            )

    def load_epoch(self) -> int:
        """Return the epoch that an earlier process recorded; 0 if there is none or it is
        damaged.
        """
        path = self.folder / EPOCH
        if not self.lasting or not path.exists():
            return 0
        try:
            epoch, digest = path.read_text().split()
            if digest != _digest(epoch):
                raise ValueError("it is damaged: its digest differs")
            return int(epoch)
        except (OSError, ValueError) as error:
            log.warning("ignored %s: %s", path, error)
            return 0

    # ---- limits ----------------------------------------------------------------------------------

    def excess(self) -> int:
        """Return the bytes over the limit. The memory does not count, since it has its own
        limit.
        """
        paths = self.folder.iterdir() if self.lasting else ()
        return max(0, sum(_size(path) for path in paths if path.name != FOLDER) - self.limit)

    def clear(self) -> None:
        """Remove everything but the memory, because the run is over."""
        for path in self.folder.iterdir():
            if path.name != FOLDER:
                _remove(path)

    def tidy(self, others: Iterable[Path], now: float | None = None) -> None:
        """Remove files older than AGE from this folder, and from folders of other runs that no
        process uses. now: seconds of the wall clock.
        """
        now = time.time() if now is None else now
        _remove_old(self.folder, now, keep=EPOCH)
        for folder in others:
            if folder == self.folder or not folder.is_dir():
                continue
            with contextlib.suppress(OSError, StoreError):
                handle = _lock(folder)
                try:
                    _remove_old(folder, now)
                    _remove_old(folder / FOLDER, now)
                finally:
                    unlock_path(folder, handle)
                for empty in (folder / FOLDER, folder, folder.parent):
                    empty.rmdir()

    def _read(self, path: Path, run: str) -> SpooledUpdate | None:
        """Read a note; None if it or its update is damaged, or belongs to another run."""
        update = path.with_suffix(UPDATE)
        try:
            note = msgspec.msgpack.decode(path.read_bytes(), type=_Note)
            if note.digest not in ("", note.expected_digest):
                raise ValueError("it is damaged: its digest differs")
            task, manifest = envelope.decode(note.task), envelope.decode(note.manifest)
            intact = (
                isinstance(manifest, messages.Manifest)
                and _size(update) == manifest.size
                and atomic_files.sha256(update) == manifest.sha256
            )
        except (OSError, ValueError, WireError) as error:  # errors of msgspec are ValueErrors
            log.warning("ignored %s: %s", path, error)
            return None
        if (
            note.run != run
            or not isinstance(task, Task)
            or not isinstance(manifest, messages.Manifest)
            or manifest.transfer != path.stem
        ):
            log.info("%s belongs to another run, or to this one before it changed", path)
            return None
        if not intact:
            log.warning("ignored %s: its update is damaged", path)
            return None
        return SpooledUpdate(task, manifest, update)


def _lock(folder: Path) -> int:
    """Return a handle that locks a folder, see `lock_path`. Raises InUse if another process holds
    the lock.
    """
    try:
        return lock_path(folder)
    except BlockingIOError:
        raise InUse(
            f"{folder} is in use by another agent of this name: give each agent its own "
            "--name, or its own --spool"
        ) from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _remove_old(folder: Path, now: float, keep: str = "") -> None:
    """Remove files older than AGE, except `keep`. An impossible age means that the wall clock was
    wrong when the file was written, and starts over.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        age = now - _modified(path)
        if not -60.0 <= age <= FOREVER:
            os.utime(path)
        elif age > AGE and path.is_file() and path.name != keep:
            log.info("removing %s: not used for %.0f days", path, age / 86400)
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
