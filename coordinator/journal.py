"""The round under way, as it stands on disk: what was asked of whom, snapshots of the total, and how it closed.

A coordinator that is killed goes on inside the round. What agents sent lies in the spool, whole or in part; what was folded lies in the last
snapshot of the total or still in the spool. So nothing is asked for twice, and the spool holds at most what came since the last snapshot.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from coordinator.decisions import Verdict
from coordinator.standing import Standing
from federated import disk
from federated.aggregate import Total, dump, load
from federated.errors import StoreError
from federated.task import Task
from models.submodel import Submodel

__all__ = ["SCHEMA", "Asked", "Entry", "Folded", "Journal", "Opened", "Standstill"]

SCHEMA = """
CREATE TABLE journal (round INTEGER PRIMARY KEY, opened REAL NOT NULL, began BLOB NOT NULL, closed TEXT, total TEXT, folded BLOB);
CREATE TABLE asked (round INTEGER, agent TEXT, asked BLOB NOT NULL, PRIMARY KEY (round, agent));
CREATE TABLE carried (agent TEXT, round INTEGER, task BLOB NOT NULL, PRIMARY KEY (agent, round));
"""
ASKED = "SELECT asked FROM asked WHERE round = ?"


@dataclass(frozen=True)
class Entry:
    """What became of one agent's task in a round. outcome: `folded`, or why not; seconds: from task to acceptance.

    step, peak: mean seconds of a step and bytes at the peak, as the device says; 0 where it does not.
    position: how many updates of the round were folded before it; digest: sha256 of the update as it came. Of one that was folded.
    task: the round of its task, where that was an earlier one; else 0.
    """

    agent: str
    submodel: str
    outcome: str
    samples: int = 0
    steps: int = 0
    loss: float = float("nan")
    seconds: float = 0.0
    step: float = 0.0
    peak: int = 0
    position: int = 0
    digest: str = ""
    task: int = 0


@dataclass(frozen=True)
class Asked:
    """An agent that was asked when the round was under way, behind `wave - 1` others; digest: of the weights that it was sent."""

    agent: str
    submodel: Submodel
    digest: str
    verdict: Verdict
    standing: Standing
    wave: int


@dataclass(frozen=True)
class Opened:
    """How a round began: all that could not be found out again once the fleet has changed.

    attempt: that its tasks carry, whoever goes on with it. chosen: agent -> submodel; digests: agent -> sha256 of the weights that it was sent.
    fleet: how many agents would be given each submodel. surveys, verdicts, standings: by agent. limit: seconds that the round may take.
    needed: updates that close it. wanted: agents that are to be at work at the same time.
    """

    round: int
    attempt: int
    chosen: dict[str, Submodel]
    digests: dict[str, str]
    fleet: tuple[tuple[Submodel, int], ...]
    surveys: dict[str, dict[str, Any]]
    verdicts: dict[str, Verdict]
    standings: dict[str, Standing]
    limit: float
    needed: int
    wanted: int


@dataclass(frozen=True)
class Folded:
    """An update that is in the total, and what it taught. submodel: that it was of; tallies: the device's own scores, where it took any."""

    entry: Entry
    submodel: Submodel
    standing: Standing
    tallies: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Standstill:
    """A round as an earlier coordinator left it. total, folded: of its last snapshot. asked: after it had begun, in order.

    closed: outcomes by agent and round of the task, None while it was open.
    """

    opened: Opened
    total: Total
    folded: tuple[Folded, ...]
    closed: Mapping[tuple[str, int], str] | None
    asked: tuple[Asked, ...] = ()

    @property
    def settled(self) -> dict[tuple[str, int], str]:
        """Outcomes, of those from whom nothing is expected any more; what is folded and in no snapshot lies in the spool."""
        others = {key: outcome for key, outcome in (self.closed or {}).items() if outcome != "folded"}
        return others | {(one.entry.agent, one.entry.task or self.opened.round): "folded" for one in self.folded}


class Journal:
    """These tables of an open database, and the snapshots beside it. Every method raises StoreError when the disk does not take it, or lost it."""

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        self._database, self._folder = database, folder

    @property
    def empty(self) -> bool:
        """Whether no round is under way."""
        return self._database.execute("SELECT 1 FROM journal LIMIT 1").fetchone() is None

    @property
    def size(self) -> int:
        """Bytes on the disk of the snapshot, and of what SQLite has not put in its place yet."""
        return sum(path.stat().st_size for path in [*self._folder.glob("total-*"), *self._folder.glob("*-wal")])

    def begin(self, opened: Opened) -> None:
        """Writes down a round before anyone hears of it."""
        row = opened.round, time.time(), msgspec.msgpack.encode(opened)
        self._write(opened.round, ("INSERT OR REPLACE INTO journal VALUES (?, ?, ?, NULL, NULL, NULL)", row))

    def ask(self, round: int, asked: Asked) -> None:
        """Writes down, before it hears of it, that an agent is asked besides."""
        self._write(round, ("INSERT OR REPLACE INTO asked VALUES (?, ?, ?)", (round, asked.agent, msgspec.msgpack.encode(asked))))

    def snapshot(self, round: int, total: Total, folded: Sequence[Folded]) -> None:
        """Keeps the total as it is; what it holds need not be kept anywhere else once this returns."""
        name = f"total-{round:06d}-{len(folded):06d}.safetensors"
        path = self._folder / name
        part, (tensors, text) = path.with_suffix(".part"), dump(total)
        try:
            save_file({home: tensor.contiguous() for home, tensor in tensors.items()}, part, {"total": text})
            disk.sync(part)
            part.replace(path)
            disk.sync(self._folder)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)  # a full disk needs no more in it
            raise StoreError(f"a snapshot of round {round} could not be written to {self._folder}: {error}") from error
        row = name, msgspec.msgpack.encode(list(folded)), round
        self._write(round, ("UPDATE journal SET total = ?, folded = ? WHERE round = ?", row))
        self._sweep(keep=name)

    def close(self, round: int, outcomes: Mapping[tuple[str, int], str]) -> None:
        """From now on the round takes no update: whoever goes on with it folds the same. outcomes: by agent and round of the task."""
        rows = [[*key, outcome] for key, outcome in outcomes.items()]
        self._write(round, ("UPDATE journal SET closed = ? WHERE round = ?", (json.dumps(rows), round)))

    def standstill(self, round: int) -> Standstill | None:
        """The round as it was left, where it had begun."""
        row = self._database.execute("SELECT began, closed, total, folded FROM journal WHERE round = ?", (round,)).fetchone()
        if row is None:
            return None
        began, closed, name, folded = row
        try:
            opened = msgspec.msgpack.decode(began, type=Opened)
            done = msgspec.msgpack.decode(folded, type=tuple[Folded, ...]) if folded is not None else ()
            total = self._read(name) if name is not None else Total()
            besides = [msgspec.msgpack.decode(row, type=Asked) for (row,) in self._database.execute(ASKED, (round,))]
        except (msgspec.DecodeError, OSError, SafetensorError, ValueError, KeyError) as error:
            raise StoreError(f"round {round}, which was under way, cannot be gone on with from {self._folder}: {error}") from error
        outcomes = None if closed is None else {(agent, of): outcome for agent, of, outcome in json.loads(closed)}
        return Standstill(opened, total, done, outcomes, tuple(sorted(besides, key=lambda one: one.wave)))

    def carried(self) -> list[Task]:
        """The tasks that were still open when the last round was stored."""
        return [msgspec.msgpack.decode(row, type=Task) for (row,) in self._database.execute("SELECT task FROM carried ORDER BY agent, round")]

    def end(self, round: int, carried: Sequence[Task] = ()) -> None:
        """Forgets rounds up to this one, but for the tasks that go on; within the caller's transaction."""
        self._database.execute("DELETE FROM journal WHERE round <= ?", (round,))
        self._database.execute("DELETE FROM asked WHERE round <= ?", (round,))
        self._database.execute("DELETE FROM carried")
        self._database.executemany("INSERT INTO carried VALUES (?, ?, ?)", [(t.agent, t.round, msgspec.msgpack.encode(t)) for t in carried])

    def drop(self, round: int) -> None:
        """Forgets a round that cannot be gone on with: it begins anew."""
        self._write(round, ("DELETE FROM journal WHERE round = ?", (round,)), ("DELETE FROM asked WHERE round = ?", (round,)))
        self._sweep()

    def _read(self, name: str) -> Total:
        with safe_open(self._folder / name, framework="pt") as file:
            metadata = file.metadata() or {}
            return load({home: file.get_tensor(home) for home in file.keys()}, metadata["total"])  # noqa: SIM118  # it is no mapping

    def _sweep(self, keep: str = "") -> None:
        for path in self._folder.glob("total-*"):
            if path.name != keep:
                path.unlink()

    def _write(self, round: int, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """All of them, or none."""
        try:
            with self._database:
                for statement, values in statements:
                    self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"the journal of round {round} could not be written to {self._folder}: {error}") from error
