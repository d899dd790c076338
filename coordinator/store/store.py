"""Where a run lives: checkpoints in safetensors, history in SQLite, one folder per run.

    runs/NAME/run.sqlite                 what the run is, and every finished round
    runs/NAME/round-000012.safetensors   the state after 12 rounds
    runs/NAME/journal-000021.log         what happened since the last checkpoint or snapshot
    runs/NAME/total-000013-000032....    of the round under way, a snapshot of the sum
    runs/NAME/spool/                     updates on their way into the fold

A round is written whole or not at all: the checkpoint is moved into place first, then one
transaction names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from coordinator.observe.records import RoundRecord
from coordinator.round.round import Round
from coordinator.store import run_lock
from coordinator.store.database import (
    Facts,
    create_database,
    open_database,
    write_facts,
    write_round,
)
from coordinator.store.journal import Base, Journal
from coordinator.store.run_records import RunRecords
from coordinator.store.runs import DATABASE, absent
from coordinator.trust import trust_tables
from federated.errors import StoreError
from federated.runtime.files import look_over, make, sync
from models.submodel import Submodel

__all__ = ["Store"]

HOLDS = "single updates of devices"
KEPT = 2  # checkpoints kept: the last, and the one before in case a disk lies about having written


class Store(RunRecords):
    """One run's folder, held by one coordinator at a time: its records, checkpoints and journal."""

    def __init__(self, folder: Path, database: sqlite3.Connection, lock: int | None) -> None:
        super().__init__(folder, database)
        self._lock = lock
        self.spool = folder / "spool"
        self.trust = trust_tables.TrustTables(database)
        self.journal = Journal(folder)
        self.kept = KEPT  # checkpoints that stay

    @classmethod
    def create(cls, root: Path, name: str, facts: Facts | None = None) -> Store:
        """Create a run. Raises StoreError if one of that name exists, or if the disk does not take
        it.
        """
        folder = root / name
        if (folder / DATABASE).exists():
            raise StoreError(
                f"run '{name}' exists in {root}: go on with it by --resume, or choose "
                "another --name"
            )
        try:
            make(folder, HOLDS)
            lock = run_lock.hold(folder)
        except OSError as error:
            raise StoreError(f"run '{name}' cannot be kept in {root}: {error.strerror}") from error
        try:
            create_database(folder, facts or Facts())
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError | sqlite3.Error):
                raise StoreError(f"run '{name}' cannot be kept in {root}: {error}") from error
            raise
        return cls(folder, sqlite3.connect(folder / DATABASE), lock)

    @classmethod
    def open(cls, root: Path, name: str, *, read_only: bool = False) -> Store:
        """Open a run to resume it or to read it. Raises StoreError if it is missing, in use, or not
        a run.
        """
        folder = root / name
        if not (folder / DATABASE).exists():
            raise absent(folder)
        lock = None
        if not read_only:
            lock = run_lock.hold(folder)
            look_over(folder, HOLDS)
        try:
            return cls(folder, open_database(folder, read_only=read_only), lock)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    def close(self, *, discard: bool = False) -> None:
        """Release the run. discard: also remove it if no round was finished or planned, because
        then nothing can be resumed.
        """
        empty = discard and self.journal.empty and not any(self.folder.glob("round-*.safetensors"))
        self.journal.close()
        super().close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if empty:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what the run is -------------------------------------------------------------------------

    def write_facts(self, facts: Facts) -> None:
        """Write what the run is. Raises StoreError when the disk does not take it."""
        with self._writing("what it is"):
            write_facts(self._database, facts)

    def next_session(self) -> int:
        """Count one more start of a coordinator on this run. The number is the attempt that its
        tasks carry.
        """
        with self._writing("that it starts"):
            row = self._database.execute(
                "SELECT value FROM facts WHERE key = 'sessions'"
            ).fetchone()
            session = int(row[0]) + 1 if row else 1
            self._database.execute(
                "INSERT OR REPLACE INTO facts VALUES ('sessions', ?)", (str(session),)
            )
        return session

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """A transaction. Raises StoreError where the disk does not take it."""
        try:
            with self._database:
                yield
        except sqlite3.Error as error:
            raise StoreError(
                f"run '{self.folder.name}': {what} could not be written to {self.folder}: {error}"
            ) from error

    # ---- rounds ----------------------------------------------------------------------------------

    def save(self, done: RoundRecord, value: Round | None = None) -> str:
        """Write a finished round, whole or not at all, and return its `checkpoint_id`. Raises
        StoreError when the disk does not take it.

        value: the round that the journal continues from; None without a journal.
        """
        checkpoint = self.folder / f"round-{done.round:06d}.safetensors"
        part = checkpoint.with_suffix(".part")
        try:
            save_file(
                {home: tensor.contiguous() for home, tensor in done.tensors.items()},
                part,
                {"touched": done.touched},
            )
            sync(part)
            with part.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            part.replace(checkpoint)
            sync(self.folder)
            if value is not None:
                self.journal.begin(Base(f"{done.round}:{digest}", value))
            with self._database:
                write_round(self._database, done, checkpoint.name, digest)
                self.ledger.keep(done.standings)
        except (OSError, sqlite3.Error, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise StoreError(
                f"round {done.round} could not be written to {self.folder}: {error}"
            ) from error
        self.journal.sweep()
        kept = {
            name
            for (name,) in self._database.execute(
                "SELECT checkpoint FROM rounds ORDER BY round DESC LIMIT ?", (self.kept,)
            )
        }
        for path in self.folder.glob("round-*"):
            if path.name not in kept:
                path.unlink()
        return f"{done.round}:{digest}"

    @property
    def checkpoint_id(self) -> str:
        """Round and sha256 of the last checkpoint; empty before the first one. A round that folded
        nothing has the bytes of the one before.
        """
        row = self._database.execute(
            "SELECT round, digest FROM rounds ORDER BY round DESC LIMIT 1"
        ).fetchone()
        return f"{row[0]}:{row[1]}" if row is not None else ""

    def last(self) -> RoundRecord | None:
        """Read the last finished round. Raises StoreError when its checkpoint is missing or
        damaged.
        """
        row = self._database.execute(
            "SELECT round, seconds, checkpoint, fleet, bytes_up, bytes_down FROM rounds "
            "ORDER BY round DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        number, seconds, checkpoint, fleet, up, down = row
        try:
            tensors = load_file(self.folder / checkpoint)
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"checkpoint {self.folder / checkpoint} cannot be read: {error}"
            ) from error
        counts = {
            msgspec.convert(submodel, Submodel): count for submodel, count in json.loads(fleet)
        }
        return RoundRecord(
            number,
            seconds,
            tensors,
            counts,
            scores=self.scores(number),
            bytes_up=up,
            bytes_down=down,
        )

    def checkpoint(self, number: int) -> tuple[dict[str, torch.Tensor], str]:
        """The state after an earlier round, mapped, and what that round folded into. Raises
        StoreError when it is not there any more.
        """
        path = self.folder / f"round-{number:06d}.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                # no mapping
                return {home: file.get_tensor(home) for home in file.keys()}, (  # noqa: SIM118
                    file.metadata() or {}
                ).get("touched", "")
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"checkpoint {path}, which a late update was made from, cannot be read: {error}"
            ) from error
