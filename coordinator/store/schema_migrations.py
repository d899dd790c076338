"""Bring a run's database from an earlier schema to the present one.

A step is left as it is once a version with it is out: it has its own SQL, and no code that reads
or writes the present schema. A new schema adds a step, and raises `VERSION`.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from coordinator.database_row_digests import seal_all
from coordinator.store.run_folders import DATABASE
from federated.errors import StoreError, explain_os_errors
from federated.runtime.atomic_files import sha256
from federated.system.disk_sync import sync

__all__ = ["CHECK_SCHEMA", "VERSION", "LaterVersion", "migrate"]

log = logging.getLogger(__name__)

VERSION = 2  # of the schema
# fails if a table or column is missing
CHECK_SCHEMA = """
SELECT checkpoint, rounds.digest, fleet, metrics, task, standing, reason, norm, cost
FROM rounds, scores, updates, standings, decisions, norms, releases LIMIT 1
"""


class LaterVersion(StoreError):
    """A later version of this program wrote a run's database."""

    def __init__(self, folder: Path, found: int) -> None:
        """found: number of its schema."""
        kept = folder / name_kept(VERSION)
        back = f", go back to {kept}, the database before that version" if kept.exists() else ""
        super().__init__(
            f"run '{folder.name}' was written by a later version of espalier (expected schema "
            f"{VERSION} or earlier, found {found}): resume it with that version{back}, or start a "
            f"new run from its weights (model.init = '{folder}/round-NNNNNN.safetensors')"
        )


def end_tables_of_round(database: sqlite3.Connection, folder: Path | None) -> list[str]:
    """Schema 1 (version 0.1.0) to 2: the round in progress has a journal in files instead of
    tables, and the database holds the digests of checkpoints and of its own rows. The round in
    progress starts over, because its agents have another protocol.
    """
    notes = [
        f"round {round} was in progress and starts over"
        for (round,) in database.execute("SELECT round FROM journal")
    ]
    (late,) = database.execute("SELECT COUNT(*) FROM carried").fetchone()
    if late:
        notes.append(f"the updates of {late} open tasks of earlier rounds will not be added")
    for table in ("journal", "asked", "carried"):
        database.execute(f"DROP TABLE {table}")
    database.execute("ALTER TABLE rounds ADD COLUMN digest TEXT NOT NULL DEFAULT ''")
    last = ""
    for round, name in database.execute(
        "SELECT round, checkpoint FROM rounds ORDER BY round"
    ).fetchall():
        if name != (expected := f"round-{round:06d}.safetensors"):
            raise sqlite3.DataError(
                f"checkpoint of round {round}: expected '{expected}', found {name!r}"
            )
        digest = sha256(folder / name) if folder and (folder / name).exists() else ""
        database.execute("UPDATE rounds SET digest = ? WHERE round = ?", (digest, round))
        last = f"{round}:{digest}"
    if last:  # otherwise the missing journal would count as lost
        database.execute("INSERT INTO facts VALUES ('new journal', ?)", (json.dumps(last),))
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'wishes'").fetchone():
        database.execute(
            "CREATE TABLE requests (about TEXT PRIMARY KEY, command TEXT NOT NULL, "
            "at TEXT NOT NULL, seen INTEGER NOT NULL)"
        )
        database.execute(
            "INSERT INTO requests SELECT about, "
            "CASE wanted WHEN 'go on' THEN 'resume' ELSE wanted END, at, heard FROM wishes"
        )
        database.execute("DROP TABLE wishes")
    database.execute(
        "CREATE TABLE digests (part TEXT, number INTEGER, digest TEXT NOT NULL, "
        "PRIMARY KEY (part, number))"
    )
    return notes


# schema -> the step to the next one. It takes the run's folder, or None if the database is only
# read: then it opens no large file. It returns what people should know about it.
Step: TypeAlias = Callable[[sqlite3.Connection, Path | None], list[str]]
STEPS: dict[int, Step] = {1: end_tables_of_round}


def read_version(database: sqlite3.Connection) -> int:
    """Return the number of a database's schema. Raises sqlite3.Error, also if it is none of a
    run's.
    """
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found:
        return int(found)
    # version 0.1.0 did not set the number, nor does an empty file have one
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone():
        raise sqlite3.DatabaseError("it has no tables of a run")
    return 1


def migrate(folder: Path, database: sqlite3.Connection, *, read_only: bool) -> sqlite3.Connection:
    """Bring a run's database to the present schema, completely or not at all, and return it. For
    reading, the file stays as it is, and a copy in memory is returned; otherwise a copy of the
    file is kept first. Raises LaterVersion, StoreError; sqlite3.Error if it is not a database.
    """
    found = read_version(database)
    if found > VERSION:  # whose tables may differ
        raise LaterVersion(folder, found)
    if found == VERSION:
        return database
    problem = (
        f"run '{folder.name}': cannot migrate {folder / DATABASE} from schema {found} to {VERSION}"
    )
    remedy = "it is unchanged, and the version of espalier that wrote it can still resume the run"
    with explain_os_errors(StoreError, problem, sqlite3.Error, remedy=remedy):
        if read_only:
            memory = sqlite3.connect(":memory:")
            with closing(database):
                database.backup(memory)
            take_steps(memory, found, None)
            return memory
        kept = keep(folder, database, found)
        notes = take_steps(database, found, folder)
    log.warning(
        "migrated %s from schema %d to %d; %s is the one before",
        *(folder / DATABASE, found, VERSION, kept),
    )
    for note in notes:
        log.warning("%s", note)
    return database


def take_steps(database: sqlite3.Connection, found: int, folder: Path | None) -> list[str]:
    """Take all steps from a schema in one transaction, and return their notes. folder: see
    `Step`.
    """
    notes = list[str]()
    with database:
        database.execute("BEGIN IMMEDIATE")
        for number in range(found, VERSION):
            notes += STEPS[number](database, folder)
        database.execute(CHECK_SCHEMA)
        seal_all(database)
        database.execute(f"PRAGMA user_version = {VERSION}")
    return notes


def keep(folder: Path, database: sqlite3.Connection, found: int) -> Path:
    """Copy a database of this schema to a file of its own, and return that."""
    kept = folder / name_kept(found)
    part = kept.with_name(f"{kept.name}.part")
    for old in folder.glob(f"{part.name}*"):  # with SQLite's journal of it
        old.unlink()
    with closing(sqlite3.connect(part)) as copy:
        database.backup(copy)
    sync(part)
    part.replace(kept)
    sync(folder)
    return kept


def name_kept(version: int) -> str:
    return f"schema-{version}-{DATABASE}"
