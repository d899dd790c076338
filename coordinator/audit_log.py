"""Record who asked for what, in a table of a run's database or of a certificate authority's.

Rows are only added. Each has the sha256 of its values and of the digest before it, which shows
changed, missing and inserted rows. A user who can write to the file can recompute all digests.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

from federated.errors import StoreError, explain_os_errors
from federated.system.users import find_user_name

__all__ = ["Actor", "add", "find_damage", "read", "record"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS audit (number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, "
    "who TEXT NOT NULL, role TEXT NOT NULL, place TEXT NOT NULL, what TEXT NOT NULL, "
    "about TEXT NOT NULL, digest TEXT NOT NULL)",
    *(
        f"CREATE TRIGGER IF NOT EXISTS audit_without_{change} BEFORE {change} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        for change in ("UPDATE", "DELETE")
    ),
)
VALUES = "number, at, who, role, place, what, about"
LOCKED = 5.0  # seconds to wait for another process


@dataclass(frozen=True)
class Actor:
    """Who asks for something.

    who: operating-system user, or name of a token of the web page.
    role: of the token; empty for a user of this machine.
    place: from where.
    """

    who: str
    role: str = ""
    place: str = "command line"


@dataclass(frozen=True)
class Action:
    """A row of the log.

    at: UTC, ISO 8601.
    who, role, place: see `Actor`.
    what: the command.
    about: what it concerns, such as an agent.
    """

    at: str
    who: str
    role: str
    place: str
    what: str
    about: str


def add(
    database: sqlite3.Connection, actor: Actor | None, what: str, abouts: Sequence[str] = ("",)
) -> None:
    """Add a row for each subject of a command, within the caller's transaction. Raises
    sqlite3.Error.

    actor: None: the user of this process, on the command line.
    """
    if not database.in_transaction:
        database.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        database.execute(statement)
    by, at = actor or Actor(find_user_name()), datetime.now(UTC).isoformat(timespec="seconds")
    last = database.execute("SELECT number, digest FROM audit ORDER BY number DESC").fetchone()
    number, digest = last or (0, "")
    for about in abouts:
        number += 1
        row = (number, *astuple(Action(at, by.who, by.role, by.place, what, about)))
        digest = compute_digest(digest, row)
        database.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))


def record(path: Path, actor: Actor | None, what: str, about: str = "") -> None:
    """Add a row to the log of a database that no caller has open. Raises StoreError."""
    with (
        explain_os_errors(StoreError, f"{path}: cannot record '{what}'", sqlite3.Error),
        closing(_connect(path)) as database,
        database,
    ):
        add(database, actor, what, (about,))


def read(path: Path) -> tuple[list[Action], list[str]]:
    """Return the log of a database, oldest first, and its damage, in words. Raises StoreError."""
    with (
        explain_os_errors(StoreError, f"{path}: cannot read the audit log", sqlite3.Error),
        closing(_connect(path)) as database,
    ):
        database.execute("BEGIN")  # one state for both
        damage = find_damage(database)
        if not has_log(database):
            return [], damage
        rows = database.execute(f"SELECT {VALUES} FROM audit ORDER BY number")  # noqa: S608
        return [Action(*row[1:]) for row in rows], damage


def find_damage(database: sqlite3.Connection) -> list[str]:
    """Return which rows are changed, missing or inserted, in words. Raises sqlite3.Error."""
    if not has_log(database):
        return []
    expected, digest, found = 1, "", list[str]()
    for *row, stored in database.execute(f"SELECT {VALUES}, digest FROM audit ORDER BY number"):  # noqa: S608
        if row[0] != expected:
            found.append(f"audit rows {expected} to {row[0] - 1} are missing")
        elif compute_digest(digest, row) != stored:
            found.append(f"audit row {row[0]}")
        expected, digest = row[0] + 1, stored
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'audit'"
    (last,) = database.execute(query).fetchone() or (0,)
    if last >= expected:
        found.append(f"audit rows {expected} to {last} are missing")
    return found


def has_log(database: sqlite3.Connection) -> bool:
    """Return False for a database without a log, such as that of an older version."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'audit'"
    return database.execute(query).fetchone() is not None


def compute_digest(before: str, row: Sequence[object]) -> str:
    """Return the sha256 of a row and the digest before it."""
    return hashlib.sha256(repr((before, *row)).encode()).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing database. Raises sqlite3.Error."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCKED)
