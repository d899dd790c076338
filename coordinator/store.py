"""Where a run lives: checkpoints in safetensors, history in SQLite, one folder per run.

    runs/NAME/run.sqlite                 what the run is, and every finished round
    runs/NAME/round-000012.safetensors   the state after 12 rounds
    runs/NAME/total-000013-000032....    of the round under way, the sum of what was folded, now and then
    runs/NAME/spool/                     updates on their way into the fold

A round is written whole or not at all: the checkpoint is moved into place first, then one transaction names it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from coordinator import disk, evidence, journal, ledger
from coordinator.journal import Entry
from coordinator.records import Round, Score
from coordinator.runs import DATABASE, absent
from federated.disk import look_over, make, sync
from federated.errors import StoreError
from models.submodel import Network, Submodel

__all__ = ["Facts", "Store"]

HOLDS = "single updates of devices"
KEPT = 2  # checkpoints kept: the last, and the one before in case a disk lies about having written
PRESENT = """
SELECT checkpoint, fleet, metrics, task, standing, reason, norm, cost, began
FROM rounds, scores, updates, standings, decisions, norms, releases, journal LIMIT 1
"""
SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, finished TEXT NOT NULL, seconds REAL NOT NULL, checkpoint TEXT NOT NULL, fleet TEXT NOT NULL,
                     bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL);
CREATE TABLE updates (round INTEGER, agent TEXT, submodel TEXT NOT NULL, outcome TEXT NOT NULL, samples INTEGER, steps INTEGER, loss REAL,
                      seconds REAL, step REAL, peak INTEGER, position INTEGER, digest TEXT, task INTEGER, PRIMARY KEY (round, agent, task));
CREATE TABLE scores (round INTEGER, submodel TEXT, view TEXT, agent TEXT, accuracy REAL NOT NULL, loss REAL, examples INTEGER NOT NULL,
                     metrics TEXT NOT NULL, PRIMARY KEY (round, submodel, view, agent));
"""


@dataclass
class Facts:
    """What a run is, once it is settled."""

    config: dict[str, Any] = field(default_factory=dict)
    network: Network | None = None
    menu: tuple[Submodel, ...] = ()


def begin(folder: Path, facts: Facts) -> None:
    """Makes a run's database beside its place and puts it there whole: who is killed before leaves no run. Raises OSError, sqlite3.Error."""
    part = folder / f"{DATABASE}.part"
    for old in folder.glob(f"{part.name}*"):
        old.unlink()
    database = sqlite3.connect(part)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(SCHEMA + ledger.SCHEMA + evidence.SCHEMA + journal.SCHEMA)
        with database:
            settle(database, facts)
    finally:
        database.close()
    sync(part)
    part.replace(folder / DATABASE)
    sync(folder)


def settle(database: sqlite3.Connection, facts: Facts) -> None:
    """Writes what a run is; within the caller's transaction."""
    values = {"config": facts.config, "network": msgspec.to_builtins(facts.network), "menu": msgspec.to_builtins(facts.menu)}
    database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", [(key, json.dumps(value)) for key, value in values.items()])


class Store:
    """One run's folder, held by one coordinator at a time."""

    def __init__(self, folder: Path, database: sqlite3.Connection, lock: int | None) -> None:
        self.folder, self._database, self._lock = folder, database, lock
        self.spool = folder / "spool"
        self.ledger = ledger.Ledger(database)
        self.evidence = evidence.Evidence(database)
        self.journal = journal.Journal(database, folder)
        self.kept = KEPT  # checkpoints that stay

    @classmethod
    def create(cls, root: Path, name: str, facts: Facts | None = None) -> Store:
        """A new run: its database is there with all that makes it one, or not at all. Raises StoreError when there is one of that name."""
        folder = root / name
        if (folder / DATABASE).exists():
            raise StoreError(f"run '{name}' exists in {root}: go on with it by --resume, or choose another --name")
        try:
            make(folder, HOLDS)
            lock = disk.hold(folder)
        except OSError as error:
            raise StoreError(f"run '{name}' cannot be kept in {root}: {error.strerror}") from error
        try:
            begin(folder, facts or Facts())
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError | sqlite3.Error):
                raise StoreError(f"run '{name}' cannot be kept in {root}: {error}") from error
            raise
        return cls(folder, sqlite3.connect(folder / DATABASE), lock)

    @classmethod
    def open(cls, root: Path, name: str, *, read_only: bool = False) -> Store:
        """A run that exists, to go on with it or to read it. Raises StoreError when it is missing, in use or not a run."""
        folder = root / name
        if not (folder / DATABASE).exists():
            raise absent(folder)
        lock = None
        if not read_only:
            lock = disk.hold(folder)
            look_over(folder, HOLDS)
        database = sqlite3.connect(folder / DATABASE)
        store = cls(folder, database, lock)
        try:
            database.execute(PRESENT)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{folder / DATABASE} is not a run's history: {error}") from error
        return store

    def close(self, *, discard: bool = False) -> None:
        """Lets go of the run. discard: removes one without a round, finished or under way: it takes no name, and nothing can be resumed."""
        empty = discard and self.journal.empty and not any(self.folder.glob("round-*.safetensors"))
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if empty:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what the run is -------------------------------------------------------------------------------------------

    def write_facts(self, facts: Facts) -> None:
        """Raises StoreError when the disk does not take it."""
        with self._writing("what it is"):
            settle(self._database, facts)

    def read_facts(self) -> Facts:
        rows = {key: json.loads(value) for key, value in self._database.execute("SELECT key, value FROM facts")}
        return Facts(
            rows.get("config", {}), msgspec.convert(rows.get("network"), Network | None), msgspec.convert(rows.get("menu", []), tuple[Submodel, ...])
        )

    def next_session(self) -> int:
        """Counts the starts of a coordinator on this run: the attempt that its tasks carry."""
        with self._writing("that it starts"):
            row = self._database.execute("SELECT value FROM facts WHERE key = 'sessions'").fetchone()
            session = int(row[0]) + 1 if row else 1
            self._database.execute("INSERT OR REPLACE INTO facts VALUES ('sessions', ?)", (str(session),))
        return session

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """A transaction. Raises StoreError where the disk does not take it."""
        try:
            with self._database:
                yield
        except sqlite3.Error as error:
            raise StoreError(f"run '{self.folder.name}': {what} could not be written to {self.folder}: {error}") from error

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def save(self, done: Round) -> None:
        """Writes a finished round, whole or not at all. Raises StoreError when the disk does not take it."""
        checkpoint = self.folder / f"round-{done.round:06d}.safetensors"
        part = checkpoint.with_suffix(".part")
        try:
            save_file({home: tensor.contiguous() for home, tensor in done.tensors.items()}, part, {"touched": done.touched})
            sync(part)
            part.replace(checkpoint)
            sync(self.folder)
            with self._database:
                self._record(done, checkpoint.name)
                self.journal.end(done.round, done.carried)
        except (OSError, sqlite3.Error, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise StoreError(f"round {done.round} could not be written to {self.folder}: {error}") from error
        kept = {name for (name,) in self._database.execute("SELECT checkpoint FROM rounds ORDER BY round DESC LIMIT ?", (self.kept,))}
        for path in [*self.folder.glob("round-*"), *self.folder.glob("total-*")]:
            if path.name not in kept:
                path.unlink()

    def _record(self, done: Round, checkpoint: str) -> None:
        fleet = json.dumps([[msgspec.to_builtins(submodel), count] for submodel, count in done.fleet.items()])
        self._database.execute(
            "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)",
            (done.round, datetime.now(UTC).isoformat(), done.seconds, checkpoint, fleet, done.bytes_up, done.bytes_down),
        )
        for e in done.entries:
            self._database.execute(
                "INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (done.round, *astuple(e)[:-1], e.task or done.round),
            )
        self.ledger.keep(done.standings)
        for s in done.scores:
            self._database.execute(
                "INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (done.round, s.submodel, s.view, s.agent, s.accuracy, s.loss, s.examples, json.dumps(s.metrics)),
            )

    @property
    def rounds_done(self) -> int:
        """The number of the last finished round."""
        return int(self._database.execute("SELECT COALESCE(MAX(round), 0) FROM rounds").fetchone()[0])

    def last(self) -> Round | None:
        """The state after the last finished round. Raises StoreError when its checkpoint is missing or damaged."""
        row = self._database.execute(
            "SELECT round, seconds, checkpoint, fleet, bytes_up, bytes_down FROM rounds ORDER BY round DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        number, seconds, checkpoint, fleet, up, down = row
        try:
            tensors = load_file(self.folder / checkpoint)
        except (OSError, SafetensorError) as error:
            raise StoreError(f"checkpoint {self.folder / checkpoint} cannot be read: {error}") from error
        counts = {msgspec.convert(submodel, Submodel): count for submodel, count in json.loads(fleet)}
        return Round(number, seconds, tensors, counts, scores=self.scores(number), bytes_up=up, bytes_down=down)

    def checkpoint(self, number: int) -> tuple[dict[str, torch.Tensor], str]:
        """The state after an earlier round, mapped, and what that round folded into. Raises StoreError when it is not there any more."""
        path = self.folder / f"round-{number:06d}.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                return {home: file.get_tensor(home) for home in file.keys()}, (file.metadata() or {}).get("touched", "")  # noqa: SIM118  # no mapping
        except (OSError, SafetensorError) as error:
            raise StoreError(f"checkpoint {path}, which a late update was made from, cannot be read: {error}") from error

    def scores(self, number: int) -> list[Score]:
        rows = self._database.execute("SELECT submodel, view, accuracy, loss, examples, agent, metrics FROM scores WHERE round = ?", (number,))
        return [
            Score(submodel, view, accuracy, math.nan if loss is None else loss, n, agent, json.loads(metrics))
            for submodel, view, accuracy, loss, n, agent, metrics in rows
        ]

    def all_scores(self) -> list[tuple[int, Score]]:
        """Every score with its round, in the order of rounds."""
        numbers = [number for (number,) in self._database.execute("SELECT DISTINCT round FROM scores ORDER BY round")]
        return [(number, score) for number in numbers for score in self.scores(number)]

    def assigned(self) -> dict[str, str]:
        """The submodel that each agent had last, by name."""
        return dict(self._database.execute("SELECT agent, submodel FROM updates ORDER BY round"))

    def updates_by_submodel(self) -> list[tuple[int, str, int]] | None:
        """How many updates of each submodel each round folded, as (round, name as the menu lists it, count) in the order of rounds.

        None where finished rounds left no record of any update, folded or not: then nothing is known.
        """
        counting = "SELECT round, submodel, SUM(outcome = 'folded') FROM updates GROUP BY round, submodel ORDER BY round"
        found = self._database.execute(counting).fetchall()
        return found if found or not self.rounds_done else None

    def folded(self) -> dict[str, int]:
        """The last round of whose tasks each agent's update was folded."""
        return dict(self._database.execute("SELECT agent, MAX(task) FROM updates WHERE outcome = 'folded' GROUP BY agent"))

    def trained(self) -> dict[str, set[str]]:
        """The names of all submodels of which an update of each agent was folded."""
        found: dict[str, set[str]] = {}
        for agent, submodel in self._database.execute("SELECT DISTINCT agent, submodel FROM updates WHERE outcome = 'folded'"):
            found.setdefault(agent, set()).add(submodel)
        return found

    def lately(self) -> dict[str, tuple[int, Entry]]:
        """What became of each agent's last task, with its round."""
        last = self._database.execute("SELECT agent, MAX(round) FROM updates GROUP BY agent").fetchall()
        entries = {number: {entry.agent: entry for entry in self.entries(number)} for number in {number for _, number in last}}
        return {agent: (number, entries[number][agent]) for agent, number in last}

    def history(self) -> list[tuple[int, float, int, int]]:
        """Each finished round: its number, seconds, bytes up and bytes down."""
        return list(self._database.execute("SELECT round, seconds, bytes_up, bytes_down FROM rounds ORDER BY round"))

    def entries(self, number: int) -> list[Entry]:
        columns = "agent, submodel, outcome, samples, steps, loss, seconds, step, peak, position, digest, IIF(task = round, 0, task)"
        rows = self._database.execute(f"SELECT {columns} FROM updates WHERE round = ? ORDER BY agent, task", (number,))  # noqa: S608  # ours
        return [
            Entry(agent, submodel, outcome, samples, steps, math.nan if loss is None else loss, *effort)
            for agent, submodel, outcome, samples, steps, loss, *effort in rows
        ]
