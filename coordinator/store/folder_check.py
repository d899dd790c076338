"""Find and repair damage in a run's folder before the run continues from it. Imports no PyTorch."""

from __future__ import annotations

import json
import logging
import sqlite3
from pathlib import Path

from coordinator.database_row_digests import find_damage, seal
from coordinator.store.database import DatabaseDamage, make_damage_error
from coordinator.store.run_folders import DATABASE
from federated.errors import StoreError, describe_os_error, explain_os_errors
from federated.runtime.atomic_files import sha256

__all__ = [
    "allow_new_journal",
    "check_rows",
    "complete_digest",
    "drop_damaged_rounds",
    "find_damaged_rounds",
    "find_file_damage",
    "find_problem",
    "find_traces",
    "list_checkpoints",
    "may_begin_journal",
    "read_checkpoint_id",
    "recover",
]

log = logging.getLogger(__name__)

CHECKPOINTS, SEGMENTS, TOTALS = "round-*.safetensors", "journal-*.log", "total-*"
NEW_JOURNAL = "new journal"  # key of the checkpoint that needs no journal
ROWS = ("rounds", "updates", "scores")  # tables of finished rounds


def recover(folder: Path, database: sqlite3.Connection) -> None:
    """Check all files that a run resumes from. Discard the last rounds if their checkpoints are
    damaged. Raises StoreError for other damage.
    """
    if damage := find_damage(database):
        raise make_damage_error(folder, damage)
    if problem := check_rows(folder, database):
        raise DatabaseDamage(folder, f"run '{folder.name}': {problem}")
    for number, found in drop_damaged_rounds(folder, database).items():
        log.error("discarded round %d, which is trained again: %s", number, found)


def check_rows(folder: Path, database: sqlite3.Connection) -> str:
    """Return why the database lost rounds, as it does without its write-ahead log; empty if it did
    not.
    """
    (last,) = database.execute("SELECT COALESCE(MAX(round), 0) FROM rounds").fetchone()
    newer = [name for name in find_traces(folder) if read_round_number(name) > last + 1]
    return (
        f"{DATABASE} ends after round {last}, but the folder has {newer[-1]}: the database lost "
        f"rounds, perhaps with its file {DATABASE}-wal"
        if newer
        else ""
    )


def list_checkpoints(folder: Path, database: sqlite3.Connection) -> list[tuple[int, str, str]]:
    """Return the round, file name and sha256 of the last two checkpoints, and of those before them
    back to the first file that exists; the last one first.
    """
    (last,) = database.execute("SELECT COALESCE(MAX(round), 0) FROM rounds").fetchone()
    found = {read_round_number(path.name) for path in folder.glob(CHECKPOINTS)} - {0}
    first = min(last - 1, *found) if found else last - 1
    rows = database.execute(
        "SELECT round, checkpoint, digest FROM rounds WHERE round >= ? ORDER BY round DESC",
        (first,),
    )
    return [(number, name, complete_digest(folder / name, digest)) for number, name, digest in rows]


def complete_digest(path: Path, digest: str) -> str:
    """Return the sha256 of a checkpoint. The database of version 0.1.0 has none: as long as it is
    only read, that of the file counts.
    """
    if digest:
        return digest
    try:
        return sha256(path)
    except OSError:  # which the caller meets as well
        return ""


def find_damaged_rounds(folder: Path, database: sqlite3.Connection) -> dict[int, str]:
    """Return the last rounds of which no checkpoint can be read, with the problem of each. Raises
    StoreError if no checkpoint of several is left.
    """
    rows, problems = list_checkpoints(folder, database), dict[int, str]()
    for number, name, digest in rows:
        if not (problem := find_problem(folder / name, digest)):
            break
        problems[number] = f"{name} {problem}"
    if len(problems) == len(rows) > 1:
        raise StoreError(
            f"run '{folder.name}': no checkpoint in {folder} can be read: "
            f"{'; '.join(problems.values())}; restore the folder from a backup"
        )
    return problems


def drop_damaged_rounds(folder: Path, database: sqlite3.Connection) -> dict[int, str]:
    """Give up the rounds of `find_damaged_rounds`, and return them. Their files get other names.
    Standings and privacy costs stay. Raises StoreError.
    """
    problems = find_damaged_rounds(folder, database)
    if not problems:
        return problems
    good = min(problems) - 1
    problem = f"cannot give up round {good + 1} in {folder}"
    with explain_os_errors(StoreError, problem, sqlite3.Error):
        # the rows last, so that this is repeated after a crash
        for path in folder.glob(CHECKPOINTS):
            if read_round_number(path.name) > good:
                path.replace(path.with_name(f"damaged-{path.name}"))
        remove_journal(folder)
        with database:
            for table in ROWS:
                database.execute(f"DELETE FROM {table} WHERE round > ?", (good,))  # noqa: S608
                database.execute("DELETE FROM digests WHERE part = ? AND number > ?", (table, good))
            mark_new_journal(database)
    return problems


def allow_new_journal(folder: Path, database: sqlite3.Connection) -> None:
    """Remove a damaged journal: the round in progress starts over. Raises StoreError."""
    problem = f"cannot remove the journal in {folder}"
    with explain_os_errors(StoreError, problem, sqlite3.Error):
        with database:
            mark_new_journal(database)
        remove_journal(folder)


def may_begin_journal(folder: Path, database: sqlite3.Connection) -> bool:
    """Return True if a run without a journal may begin one: it is new, or its journal was given
    up.
    """
    found = read_checkpoint_id(database)
    row = database.execute("SELECT value FROM facts WHERE key = ?", (NEW_JOURNAL,)).fetchone()
    return (row is not None and json.loads(row[0]) == found) or not (found or find_traces(folder))


def read_checkpoint_id(database: sqlite3.Connection) -> str:
    """Return the round and sha256 of the last checkpoint; empty before the first one."""
    row = database.execute(
        "SELECT round, digest FROM rounds ORDER BY round DESC LIMIT 1"
    ).fetchone()
    return f"{row[0]}:{row[1]}" if row is not None else ""


def find_traces(folder: Path) -> list[str]:
    """Return the names of a run's checkpoints and journal segments, the latest last."""
    return sorted(path.name for one in (SEGMENTS, CHECKPOINTS) for path in folder.glob(one))


def read_round_number(name: str) -> int:
    """Return the round of a checkpoint; 0 for another file."""
    round = name.removeprefix("round-").removesuffix(".safetensors")
    return int(round) if round.isdecimal() else 0


def mark_new_journal(database: sqlite3.Connection) -> None:
    """Note that the last checkpoint needs no journal; within the caller's transaction."""
    value = json.dumps(read_checkpoint_id(database))
    database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (NEW_JOURNAL, value))
    seal(database, "facts")


def remove_journal(folder: Path) -> None:
    """Remove all segments of a journal, and the totals that they name."""
    for pattern in (SEGMENTS, TOTALS):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def find_problem(path: Path, digest: str) -> str:
    """Return why a file is not the one with this sha256, in words that follow its name; empty if it
    is.
    """
    try:
        return find_file_damage(path, digest)
    except OSError as error:
        return f"cannot be read: {describe_os_error(error)}"


def find_file_damage(path: Path, digest: str) -> str:
    """Return as `find_problem` does. Raises OSError if the file is there and cannot be read."""
    try:
        found = sha256(path)
    except FileNotFoundError:
        return "is missing"
    return "" if found == digest else f"is damaged: expected sha256 {digest}, found {found}"
