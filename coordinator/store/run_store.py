"""Create or open the folder of a run, save its finished rounds, and read them to resume.

    runs/NAME/run.sqlite                 the run's description, and every finished round
    runs/NAME/run.sqlite.copy            the same after the last round, in case the disk damages it
    runs/NAME/schema-1-run.sqlite        the same before it was migrated from an earlier schema
    runs/NAME/round-000012.safetensors   the state after 12 rounds
    runs/NAME/journal-000021.log         the events since the last checkpoint or snapshot
    runs/NAME/total-000013-000032....    a snapshot of the sum of the round in progress
    runs/NAME/spool/                     received updates that are not folded yet
    runs/NAME/graphs/                    training graphs for agents without PyTorch

A round is written completely or not at all: the checkpoint is moved into place first, then one
transaction names it. The database holds the sha256 of each checkpoint and of its own rows; the
journal those of the total and of the updates.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from coordinator.database_row_digests import seal
from coordinator.observe.round_records import RoundRecord
from coordinator.round.round_state import Round
from coordinator.store import run_lock
from coordinator.store.control_requests import Stopped, begin_requests
from coordinator.store.database import (
    DatabaseDamage,
    Facts,
    create_database,
    open_database,
    restore_copy,
    update_copy,
    write_facts,
    write_round,
)
from coordinator.store.folder_check import (
    complete_digest,
    find_traces,
    may_begin_journal,
    read_checkpoint_id,
    recover,
)
from coordinator.store.journal import Base, Journal
from coordinator.store.run_database_reader import RunRecords
from coordinator.store.run_folders import DATABASE, make_missing_error
from coordinator.store.tensor_files import read_tensors, write_tensors
from coordinator.trust import norm_and_privacy_tables
from federated.errors import StoreError, explain_os_errors
from federated.flag_and_argument_names import NAME, RESUME
from federated.runtime.atomic_files import make_private, warn_if_public
from federated.system.disk_sync import sync
from models.submodel import Submodel

__all__ = ["Store"]

HOLDS = "single updates of devices"
KEPT = 2  # checkpoints: the last, and the one before, in case a disk did not really write it


log = logging.getLogger(__name__)


def open_intact(folder: Path) -> sqlite3.Connection:
    """Open a run's database to resume it, and check all files. If the database is damaged, its copy
    replaces it. Raises StoreError.
    """
    try:
        return open_checked(folder)
    except DatabaseDamage as damage:
        problem = f"cannot replace the damaged database in {folder}"
        with explain_os_errors(StoreError, problem, sqlite3.Error):
            if not restore_copy(folder):
                raise
        log.error(
            "%s: replaced by its copy, which was written after the last finished round or the last "
            "start; the damaged file is damaged-%s",
            damage.problem,
            DATABASE,
        )
    return open_checked(folder)


def open_checked(folder: Path) -> sqlite3.Connection:
    database = open_database(folder, read_only=False)
    try:
        recover(folder, database)
    except BaseException:
        database.close()
        raise
    return database


class Store(RunRecords):
    """One run's folder, held by one coordinator at a time: its records, checkpoints and journal."""

    def __init__(self, folder: Path, database: sqlite3.Connection, lock: int | None) -> None:
        super().__init__(folder, database, self.check_lock)
        self._lock = lock
        self.spool = folder / "spool"
        self.trust = norm_and_privacy_tables.TrustTables(database, self.check_lock)
        self.journal = Journal(folder, self.check_lock)
        self.kept = KEPT  # number of checkpoints to keep

    @classmethod
    def create(cls, root: Path, name: str, facts: Facts | None = None) -> Store:
        """Create a run. Raises StoreError if one of that name exists, or if the disk fails."""
        folder = root / name
        if (folder / DATABASE).exists():
            raise StoreError.naming(
                lambda spell: (
                    f"run '{name}' exists in {root}: resume it ({spell(RESUME)}), or "
                    f"choose another name ({spell(NAME)})"
                )
            )
        if traces := find_traces(folder):
            raise StoreError(
                f"run '{name}': {folder} has {traces[-1]} but no {DATABASE}, so its rounds are "
                "unknown: restore the folder from a backup, or choose another name and start "
                f"from its weights (model.init = '{folder}/round-NNNNNN.safetensors')"
            )
        problem, since = f"cannot create run '{name}' in {root}", datetime.now(UTC)
        with ExitStack() as undo, explain_os_errors(StoreError, problem, sqlite3.Error):
            make_private(folder, HOLDS)
            lock = run_lock.acquire(folder)
            undo.callback(run_lock.release, lock)
            create_database(folder, facts or Facts())
            for created_in in root, root.parent:
                sync(created_in)
            database = sqlite3.connect(folder / DATABASE)
            undo.callback(database.close)
            begin_requests(database, since)
            undo.pop_all()
        return cls(folder, database, lock)

    @classmethod
    def open(cls, root: Path, name: str, *, read_only: bool = False) -> Store:
        """Open a run to resume it or to read it. Raises StoreError if it is missing, in use, or
        invalid.
        """
        folder = root / name
        if not (folder / DATABASE).exists():
            raise make_missing_error(folder)
        if read_only:
            return cls(folder, open_database(folder, read_only=True), None)
        since = datetime.now(UTC)  # checking the files may take long, and requests may come
        with ExitStack() as undo:
            lock = run_lock.acquire(folder)
            undo.callback(run_lock.release, lock)
            warn_if_public(folder, HOLDS)
            problem = f"cannot resume run '{name}' in {root}"
            with (
                run_lock.renewing(lock, folder),
                explain_os_errors(StoreError, problem, sqlite3.Error),
            ):
                # a process that was killed may have created files whose names are not on disk yet
                for created_in in folder, root:
                    sync(created_in)
                for part in folder.glob("*.part"):  # which an earlier process did not finish
                    part.unlink(missing_ok=True)  # a second standby may just move it
                database = open_intact(folder)
                undo.callback(database.close)
                begin_requests(database, since)
            undo.pop_all()
        return cls(folder, database, lock)

    def renewing(self) -> AbstractContextManager[None]:
        """Show standby coordinators that this one works."""
        return run_lock.renewing(self._held, self.folder)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Do what `renewing` does, and show standby coordinators that they are not needed if the
        run finishes or is stopped on request.
        """
        with self.renewing():
            try:
                yield
            except Stopped:
                self._mark_end()
                raise
            self._mark_end()

    def leads(self) -> bool:
        """Return False once another coordinator took over the run."""
        return run_lock.is_present(self._held, self.folder)

    @property
    def _held(self) -> int:
        assert self._lock is not None, "the run was opened to be read"
        return self._lock

    def _mark_end(self) -> None:
        with explain_os_errors(StoreError, f"cannot write {self.folder / 'lock'}"):
            run_lock.mark_end(self._held)

    def close(self, *, discard: bool = False) -> None:
        """Release the run. discard: also delete it if no round was finished or planned, because
        then nothing can be resumed.
        """
        empty = discard and self.journal.empty and not any(self.folder.glob("round-*.safetensors"))
        self.journal.close()
        super().close()
        if self._lock is None:
            return
        if empty and run_lock.is_present(self._lock, self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
        run_lock.release(self._lock)
        self._lock = None

    # ---- description -----------------------------------------------------------------------------

    def write_facts(self, facts: Facts) -> None:
        """Write the run's description. Raises StoreError."""
        with self._writing("its description"):
            write_facts(self._database, facts)

    def next_session(self) -> int:
        """Count one more start of a coordinator on this run, and return the number, which its tasks
        carry as the attempt. Raises StoreError.
        """
        return self._increase("sessions", 1)

    def next_epoch(self, now: float) -> int:
        """Return a higher epoch than those of earlier coordinators of this run, also of one that
        has a copy of the folder: the time in milliseconds. Raises StoreError.

        now: seconds since 1970. If the clock went back, the last epoch plus one.
        """
        return self._increase("epoch", int(1000 * now))

    def _increase(self, key: str, least: int) -> int:
        """Store and return the next value of a number in `facts`, at least `least`."""
        with self._writing("its start"):
            row = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
            value = max(least, int(row[0]) + 1 if row else 1)
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, str(value)))
            seal(self._database, "facts")
        problem = f"run '{self.folder.name}': cannot copy its database in {self.folder}"
        with explain_os_errors(StoreError, problem, sqlite3.Error):
            update_copy(self.folder, self._database, self.check_lock)
        return value

    def check_lock(self) -> None:
        """Raise Superseded or StoreError if this process lost the run's lock."""
        if self._lock is not None:
            run_lock.check(self._lock, self.folder)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Open a transaction that writes `what`. Raises StoreError if it fails."""
        self.check_lock()
        problem = f"run '{self.folder.name}': cannot write {what} to {self.folder}"
        with explain_os_errors(StoreError, problem, sqlite3.Error), self._database:
            yield

    # ---- rounds ----------------------------------------------------------------------------------

    def save(self, done: RoundRecord, value: Round | None = None) -> str:
        """Write a finished round, completely or not at all, and return its `checkpoint_id`. Raises
        StoreError.

        value: the round that the journal continues from; None without a journal.
        """
        self.check_lock()
        checkpoint = self.folder / f"round-{done.round:06d}.safetensors"
        problem = f"cannot write round {done.round} to {self.folder}"
        with explain_os_errors(StoreError, problem, sqlite3.Error):
            texts = {"touched": done.touched}
            digest = write_tensors(checkpoint, done.tensors, texts, self.check_lock)
            if value is not None:
                self.journal.begin(Base(f"{done.round}:{digest}", value))
            with self._database:
                write_round(self._database, done, checkpoint.name, digest)
                self.agents.write_standings(done.standings)
            # before the journal that the copy so far continues is removed
            update_copy(self.folder, self._database, self.check_lock)
        self.journal.sweep()
        kept = {
            name
            for (name,) in self._database.execute(
                "SELECT checkpoint FROM rounds ORDER BY round DESC LIMIT ?", (self.kept,)
            )
        }
        found = list(self.folder.glob("round-*"))
        self.check_lock()  # once they are listed: those of a later coordinator must stay
        for path in found:
            if path.name not in kept:
                path.unlink(missing_ok=True)
        return f"{done.round}:{digest}"

    @property
    def checkpoint_id(self) -> str:
        """Round and sha256 of the last checkpoint; empty before the first one. A round that folded
        nothing has the same bytes as the one before it.
        """
        return read_checkpoint_id(self._database)

    @property
    def may_begin_journal(self) -> bool:
        """True if a run without a journal may begin one."""
        return may_begin_journal(self.folder, self._database)

    def read_last(self) -> RoundRecord | None:
        """Read the last finished round. Raises StoreError if its checkpoint is missing or
        damaged.
        """
        row = self._database.execute(
            "SELECT round, seconds, checkpoint, fleet, bytes_up, bytes_down, digest FROM rounds "
            "ORDER BY round DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        number, seconds, checkpoint, fleet, up, down, digest = row
        path = self.folder / checkpoint
        # that command says whether the round can be discarded, or needs a backup
        remedy = f"; list the damage and its remedies with: coordinator check {self.folder.name}"
        known = complete_digest(path, digest)
        tensors, _ = read_tensors(path, known, f"checkpoint {path}", remedy)
        counts = {
            msgspec.convert(submodel, Submodel): count for submodel, count in json.loads(fleet)
        }
        return RoundRecord(
            number,
            seconds,
            tensors,
            counts,
            scores=self.read_scores(number),
            bytes_up=up,
            bytes_down=down,
        )

    def read_checkpoint(self, number: int) -> tuple[dict[str, torch.Tensor], str]:
        """Return the state after an earlier round, memory-mapped, and what that round folded into.
        Raises StoreError if it no longer exists.
        """
        path = self.folder / f"round-{number:06d}.safetensors"
        what = f"checkpoint {path} of a late update"
        row = self._database.execute(
            "SELECT digest FROM rounds WHERE round = ?", (number,)
        ).fetchone()
        if row is None:
            raise StoreError(f"{what}: run '{self.folder.name}' has no finished round {number}")
        tensors, texts = read_tensors(path, complete_digest(path, row[0]), what)
        return tensors, texts.get("touched", "")
