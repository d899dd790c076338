"""Store digests of the rows in a run's database, and find rows that the disk damaged.

SQLite checks the shape of its pages, not the values in them. Rows that are written together are a
part: a whole table, or the rows of one number, such as those of a round. The writer of a part
seals it in the same transaction.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from itertools import groupby

__all__ = ["SCHEMA", "find_damage", "seal", "seal_all"]

SCHEMA = """
CREATE TABLE digests (part TEXT, number INTEGER, digest TEXT NOT NULL, PRIMARY KEY (part, number));
"""
# table -> column whose values number its parts; None: the table is one part, number 0
PARTS = {
    "facts": None,
    "rounds": "round",
    "updates": "round",
    "scores": "round",
    "standings": None,
    "decisions": "round",
    "profiles": None,
    "norms": None,
    "releases": "release",
}


def seal(database: sqlite3.Connection, part: str, number: int = 0) -> None:
    """Store the digest of a part's present rows; within the caller's transaction."""
    column = PARTS[part]
    where, values = (f" WHERE {column} = ?", (number,)) if column else ("", ())
    query = f"SELECT * FROM {part}{where} ORDER BY rowid"  # noqa: S608  # names of PARTS
    database.execute(
        "INSERT OR REPLACE INTO digests VALUES (?, ?, ?)",
        (part, number, digest_rows(database.execute(query, values))),
    )


def seal_all(database: sqlite3.Connection) -> None:
    """Store the digests of all present rows, and no others; within the caller's transaction.
    Raises sqlite3.Error.
    """
    database.execute("DELETE FROM digests")
    for part in PARTS:
        database.executemany(
            "INSERT INTO digests VALUES (?, ?, ?)",
            [(part, number, digest) for number, digest in digest_parts(database, part).items()],
        )


def find_damage(database: sqlite3.Connection, parts: tuple[str, ...] = tuple(PARTS)) -> list[str]:
    """Return which parts differ from their digests, in words."""
    try:
        known: dict[str, dict[int, str]] = {}
        for part, number, digest in database.execute("SELECT * FROM digests"):
            check_number("digests", "number", number)
            known.setdefault(part, {})[number] = digest
        found = [f"digests of an unknown table '{part}'" for part in known if part not in PARTS]
        for part in parts:
            found += compare(part, known.get(part, {}), digest_parts(database, part))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [str(error)]
    return found


def compare(part: str, known: dict[int, str], present: dict[int, str]) -> list[str]:
    """Return the damaged parts of a table. known: stored digests; present: those of its rows."""
    nothing = digest_rows([])
    return [
        f"{part} of {PARTS[part]} {number}" if PARTS[part] else part
        for number in sorted({*known, *present})
        if known.get(number, nothing) != present.get(number, nothing)
    ]


def digest_parts(database: sqlite3.Connection, part: str) -> dict[int, str]:
    """Return the digests of a table's present rows, by number. Raises sqlite3.Error."""
    column = PARTS[part]
    if column is None:
        rows = database.execute(f"SELECT * FROM {part} ORDER BY rowid")  # noqa: S608
        return {0: digest_rows(rows)}
    query = f"SELECT {column}, * FROM {part} ORDER BY {column}, rowid"  # noqa: S608
    digests = dict[int, str]()
    for number, group in groupby(database.execute(query), key=lambda row: row[0]):
        check_number(part, column, number)
        digests[number] = digest_rows(row[1:] for row in group)
    return digests


def check_number(table: str, column: str, found: object) -> None:
    """Raise sqlite3.DataError unless a value is a number, which SQLite does not ensure."""
    if not isinstance(found, int):
        raise sqlite3.DataError(f"{table}: expected a number as {column}, found {found!r}")


def digest_rows(rows: Iterable[tuple[object, ...]]) -> str:
    """Return the sha256 of `repr(list(rows))`, without holding all rows at once: a run's database
    may have a row for each of thousands of agents in each round.
    """
    digest, separator = hashlib.sha256(b"["), ""
    for row in rows:
        digest.update(f"{separator}{row!r}".encode())
        separator = ", "
    digest.update(b"]")
    return digest.hexdigest()
