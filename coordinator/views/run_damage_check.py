"""Check every file in a run's folder for damage and repair it, for `coordinator check`. Imports no
PyTorch.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from coordinator import audit_log
from coordinator.database_row_digests import find_damage
from coordinator.fleet.update_file_names import update_path
from coordinator.release.history import HISTORY, ModelHistory, SoftwareHistory, is_intact
from coordinator.settings.config import read_tables
from coordinator.store import folder_check, run_lock
from coordinator.store.database import COPY, find_copy_damage, open_database, restore_copy
from coordinator.store.folder_check import find_problem
from coordinator.store.journal_framing import FRAME, split_records, unpack_plainly
from coordinator.store.run_database_reader import RunRecords
from coordinator.store.run_folders import DATABASE, make_missing_error
from coordinator.store.schema_migrations import LaterVersion, migrate
from federated.errors import ExportError, StoreError
from federated.runtime.sqlite_wal_damage import LogDamage, find_log_damage
from federated.runtime.unit_formatting import format_count
from federated.safe_text import make_safe
from federated.task import Key
from federated.wire.topics import VERSION

__all__ = ["check_run", "render_check"]

log = logging.getLogger(__name__)

BACKUP = "restore it from a backup"
RELEASE_AGAIN = "restore it from a backup, or release the round again"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    file: its path in the run's folder.
    problem: in words that follow the file; empty if it is intact.
    remedy: what resuming or a person does about it.
    repair: repairs it; None if only a person can.
    """

    file: str
    problem: str = ""
    remedy: str = ""
    repair: Callable[[], object] | None = None


def check_run(name: str, runs: Path, *, repair: bool) -> dict[str, Any]:
    """Check all files of a run; return the result as plain values.

    repair: also repair what can be repaired.
    Raises StoreError if there is no such run, if a coordinator works on it, or if a later version
    wrote it.
    """
    folder = runs / name
    if not (folder / DATABASE).exists() and not folder_check.find_traces(folder):
        raise make_missing_error(folder)
    lock = run_lock.acquire(folder)
    try:
        with run_lock.renewing(lock, folder):
            found = list(check_folder(folder))
            broken = [one for one in found if one.problem]
            if repair:
                repair_files(folder, broken)
    finally:
        run_lock.release(lock)
    return {
        "run": name,
        "checked": len(found),
        "damaged": [
            {
                "file": one.file,
                "problem": one.problem,
                "remedy": one.remedy,
                "repairable": one.repair is not None,
                "repaired": repair and one.repair is not None,
            }
            for one in broken
        ],
    }


def repair_files(folder: Path, broken: Iterable[Finding]) -> None:
    """Repair what can be repaired, and record it in the audit log."""
    repaired = list[str]()
    try:
        for one in broken:
            if one.repair is not None:
                one.repair()
                repaired.append(one.file)
    finally:
        if repaired:
            record_repair(folder, repaired)


def record_repair(folder: Path, files: Iterable[str]) -> None:
    """Record who repaired which files, if the database can be used: it holds the audit log."""
    try:
        if (damage := find_log_damage(folder / DATABASE)) is not None:
            raise StoreError(f"{DATABASE}-wal {damage.problem}")  # SQLite would remove it
        for file in files:
            audit_log.record(folder / DATABASE, None, "repair", file)
    except (OSError, StoreError) as error:
        log.warning("this repair is not in the audit log: %s", error)


def render_check(made: dict[str, Any]) -> str:
    """Return the result as text: a line for each damaged file, and a summary."""
    lines = [
        make_safe(f"{one['file']} {one['problem']}: {describe_remedy(one)}", None)
        for one in made["damaged"]
    ]
    checked, damaged = format_count(made["checked"], "file"), len(made["damaged"]) or "none"
    return "\n".join([*lines, f"run '{made['run']}': checked {checked}, {damaged} damaged"])


def describe_remedy(one: dict[str, Any]) -> str:
    if one["repaired"]:
        return f"repaired; {one['remedy']}"
    return f"with --repair, {one['remedy']}" if one["repairable"] else one["remedy"]


# ---- what is checked -----------------------------------------------------------------------------


def check_folder(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each part of a run's folder."""
    try:
        if not (folder / DATABASE).exists():
            raise StoreError("is missing")
        damage_of_log = find_log_damage(folder / DATABASE)
        if damage_of_log is not None:
            yield describe_log(folder, damage_of_log)
        # SQLite would remove a damaged log
        if damage_of_log is None or damage_of_log.last:
            with (
                closing(sqlite3.connect(folder / DATABASE)) as file,
                closing(migrate(folder, file, read_only=True)) as database,
            ):
                yield from check_database(folder, database)
    except LaterVersion:
        raise
    except (OSError, StoreError, sqlite3.Error) as error:
        yield describe_database(folder, DATABASE, f"cannot be read ({error})")
    if (folder / COPY).exists():
        broken = find_copy_damage(folder)
        problem = f"is damaged ({', '.join(broken)})" if broken else ""
        remedy = "it is removed, and written again after the next round"
        yield Finding(COPY, problem, remedy, (folder / COPY).unlink)
    yield from check_releases(folder / "releases")
    yield from check_history(folder / "upgrades", SoftwareHistory)


def describe_log(folder: Path, found: LogDamage) -> Finding:
    """Return the finding for a damaged write-ahead log."""
    if not found.last:
        return describe_database(folder, f"{DATABASE}-wal", found.problem)
    remedy = "its last transaction is dropped, as one that a crash left incomplete"
    return Finding(f"{DATABASE}-wal", found.problem, remedy, partial(open_once, folder))


def describe_database(folder: Path, file: str, problem: str) -> Finding:
    """Return the finding for a database, or its log, that cannot be used."""
    if find_copy_damage(folder):
        return Finding(file, problem, BACKUP)
    remedy = f"it is replaced by {COPY}, of the last finished round or the last start"
    return Finding(file, problem, remedy, partial(restore_copy, folder))


def open_once(folder: Path) -> None:
    """Let SQLite drop a damaged transaction."""
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("SELECT COUNT(*) FROM facts").fetchone()


def check_database(folder: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    """Yield findings on the database, and on the files whose digests it holds."""
    broken = find_damage(database)
    if lost := folder_check.check_rows(folder, database):
        broken.append(lost)
    if broken:
        yield describe_database(folder, DATABASE, f"is damaged ({', '.join(broken)})")
        return
    damage = ", ".join(audit_log.find_damage(database))
    yield Finding(DATABASE, f"has a damaged audit log ({damage})" if damage else "", BACKUP)
    yield from check_checkpoints(folder, database)
    try:
        if folder_check.find_damaged_rounds(folder, database):
            return  # the journal belongs to a discarded round
    except StoreError:  # no checkpoint is left, as reported above
        return
    with closing(open_database(folder, read_only=True)) as second:
        rounds = read_tables(RunRecords(folder, second).read_facts().config).rounds
    yield from check_journal(folder, database, rounds)


def check_checkpoints(folder: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    rows = folder_check.list_checkpoints(folder, database)
    try:
        last = folder_check.find_damaged_rounds(folder, database)
    except StoreError:  # no checkpoint is left
        for _, name, digest in rows:
            yield Finding(name, find_problem(folder / name, digest), BACKUP)
        return

    drop_rounds = partial(change_database, folder, folder_check.drop_damaged_rounds)
    for number, name, digest in rows:
        path = folder / name
        if number in last:
            remedy = f"round {number} is discarded and trained again"
            yield Finding(name, find_problem(path, digest), remedy, drop_rounds)
        elif path.exists():
            remedy = "it is renamed; only late updates need it"
            yield Finding(name, find_problem(path, digest), remedy, partial(put_aside, path))


def change_database(folder: Path, change: Callable[[Path, sqlite3.Connection], object]) -> None:
    """Repair a run with a connection of its own: the one of the check is closed by then."""
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        change(folder, migrate(folder, database, read_only=False))


def put_aside(path: Path) -> None:
    """Rename a damaged checkpoint."""
    path.replace(path.with_name(f"damaged-{path.name}"))


def check_journal(folder: Path, database: sqlite3.Connection, rounds: int) -> Iterator[Finding]:
    """Yield findings on the journal of the round in progress, its total and its updates."""
    checkpoint = folder_check.read_checkpoint_id(database)
    done = int(checkpoint.partition(":")[0] or 0)
    remedy = f"round {done + 1} starts from its beginning"

    restart = partial(change_database, folder, folder_check.allow_new_journal)
    for path in sorted(folder.glob("journal-*.log"), reverse=True):
        data = path.read_bytes()
        try:
            payloads = split_records(data)
            base, *events = map(unpack_plainly, payloads)
            named = base["checkpoint"]
        except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
            yield Finding(path.name, f"is damaged: {error}", remedy, restart)
            return
        if named != checkpoint:
            continue
        end = sum(FRAME.size + len(payload) for payload in payloads)
        problem = f"has {len(data) - end} damaged bytes at its end" if end < len(data) else ""
        remedy_of_tail = "they are cut off, as those that a crash leaves"
        yield Finding(path.name, problem, remedy_of_tail, partial(os.truncate, path, end))
        if base["total"]:
            total = folder / base["total"]
            yield Finding(total.name, find_problem(total, base["digest"]), remedy, restart)
        yield from check_updates(folder / "spool", base, events)
        return
    if done < rounds and not folder_check.may_begin_journal(folder, database):
        yield Finding("journal", f"that continues round {done} is missing", remedy, restart)


def check_updates(spool: Path, base: Any, events: list[Any]) -> Iterator[Finding]:
    """Yield findings on the received updates that are still in the spool."""
    digests = {Key(*key): state["digest"] for key, state in base["round"]["tasks"]}
    digests |= {Key(*e["key"]): e["digest"] for e in events if e["type"] == "UpdateCame"}
    for key, digest in digests.items():
        path = update_path(spool, key)
        if digest and path.exists():
            remedy = "it is removed, and requested again or its round starts over"
            file = f"spool/{path.parent.name}/{path.name}"
            yield Finding(file, find_problem(path, digest), remedy, path.unlink)


def check_history(folder: Path, kind: Any) -> Iterator[Finding]:
    """Yield the finding on a history of releases, if there is one. kind: its type."""
    if not (folder / HISTORY).exists():
        return
    try:
        history = msgspec.json.decode((folder / HISTORY).read_bytes(), type=kind)
        problem = "" if is_intact(history) else "is damaged: its digest differs"
    except (OSError, ValueError) as error:  # errors of msgspec are ValueErrors
        problem = f"cannot be read: {error}"
    yield Finding(f"{folder.name}/{HISTORY}", problem, BACKUP)


def check_releases(folder: Path) -> Iterator[Finding]:
    """Yield findings on the releases of a run, and on their history."""
    yield from check_history(folder, ModelHistory)
    for version in sorted(folder.iterdir()) if folder.is_dir() else ():
        if re.match(VERSION, version.name):
            yield from check_release(version)


def check_release(folder: Path) -> Iterator[Finding]:
    """Yield findings on the manifest of a release and on the files that it lists."""
    from export import (
        release_reader,  # not at the top: it loads numpy, which a run without releases spares
    )

    place, listed = f"{folder.parent.name}/{folder.name}", set[release_reader.File]()
    try:
        intact = release_reader.read_version(folder) == folder.name
        problem = "" if intact else "is damaged: its sha256 is not the version's"
        if intact:
            listed = set(release_reader.list_files(release_reader.read_manifest(folder)))
    except ExportError as error:
        problem = f"cannot be read: {error}"
    yield Finding(f"{place}/{release_reader.MANIFEST}", problem, RELEASE_AGAIN)
    for file in sorted(listed, key=lambda file: file.name):
        problem = find_problem(folder / file.name, file.sha256)
        yield Finding(f"{place}/{file.name}", problem, RELEASE_AGAIN)
