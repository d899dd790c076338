"""Create and open the SQLite database of a run, and write its description and finished rounds."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from coordinator import database_row_digests
from coordinator.observe.round_records import Entry, RoundRecord
from coordinator.store import agent_tables, run_lock
from coordinator.store.run_folders import DATABASE
from coordinator.store.schema_migrations import CHECK_SCHEMA, VERSION, migrate
from coordinator.trust import norm_and_privacy_tables
from federated.errors import StoreError
from federated.runtime.sqlite_wal_damage import find_log_damage
from federated.system.disk_sync import sync
from models.submodel import Network, Submodel

__all__ = [
    "COPY",
    "DatabaseDamage",
    "Facts",
    "create_database",
    "find_copy_damage",
    "join_settings",
    "make_damage_error",
    "open_database",
    "restore_copy",
    "update_copy",
    "write_facts",
    "write_round",
]

log = logging.getLogger(__name__)

COPY = f"{DATABASE}.copy"
BLOCK = 64 * 1024  # bytes of the copy that are compared and written at a time
# fields of a row of updates; `astuple` is slow
ENTERED = attrgetter(*(each.name for each in fields(Entry) if each.name != "task"))
SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, finished TEXT NOT NULL, seconds REAL NOT NULL,
                     checkpoint TEXT NOT NULL, fleet TEXT NOT NULL,
                     bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE updates (round INTEGER, agent TEXT, submodel TEXT NOT NULL, outcome TEXT NOT NULL,
                      samples INTEGER, steps INTEGER, loss REAL,
                      seconds REAL, step REAL, peak INTEGER,
                      position INTEGER, digest TEXT, task INTEGER,
                      PRIMARY KEY (round, agent, task));
CREATE TABLE scores (round INTEGER, submodel TEXT, view TEXT, agent TEXT, accuracy REAL NOT NULL,
                     loss REAL, examples INTEGER NOT NULL, metrics TEXT NOT NULL,
                     PRIMARY KEY (round, submodel, view, agent));
"""


class DatabaseDamage(StoreError):
    """The database of a run, or its write-ahead log, is damaged."""

    def __init__(self, folder: Path, problem: str) -> None:
        self.problem = problem
        remedy = (
            f"resume the run, or run coordinator check {folder.name} --repair, which restores it "
            f"from {COPY}"
            if not find_copy_damage(folder)
            else "restore the run's folder from a backup, or start a new run from its last "
            f"checkpoint (model.init = '{folder}/round-NNNNNN.safetensors')"
        )
        super().__init__(f"{problem}: {remedy}")


@dataclass
class Facts:
    """The description of a run.

    config: its settings, as plain values.
    network: the largest network; None until it is known.
    menu: the submodels that agents train, smallest first.
    reach: name of a submodel in the menu -> names of the submodels that its updates train, without
        branches; empty until the menu is known, and in runs of versions that did not store it.
    defaults: of the settings. Values equal to them are stored apart: an earlier version does not
        know newer settings, and reads the others.
    """

    config: dict[str, Any] = field(default_factory=dict)
    network: Network | None = None
    menu: tuple[Submodel, ...] = ()
    reach: dict[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


def create_database(folder: Path, facts: Facts) -> None:
    """Create a run's database under a temporary name, then rename it, so that an interrupted call
    leaves no database. Raises OSError, sqlite3.Error.
    """
    part = folder / f"{DATABASE}.part"
    for old in folder.glob(f"{part.name}*"):
        old.unlink()
    with closing(sqlite3.connect(part)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(
            SCHEMA
            + agent_tables.SCHEMA
            + norm_and_privacy_tables.SCHEMA
            + database_row_digests.SCHEMA
        )
        database.execute(f"PRAGMA user_version={VERSION}")
        with database:
            write_facts(database, facts)
    sync(part)
    part.replace(folder / DATABASE)
    sync(folder)


def open_database(folder: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the database of a run, and migrate one of an earlier schema: for reading, a copy of it
    in memory. Raises StoreError if it is invalid, or if a later version wrote it.
    """
    if not (read_only and run_lock.is_held(folder)):
        check_log(folder)
    with ExitStack() as undo:
        database = sqlite3.connect(folder / DATABASE)
        undo.callback(database.close)
        try:
            database = migrate(folder, database, read_only=read_only)
            undo.callback(database.close)
            database.execute(CHECK_SCHEMA)
            damage = database_row_digests.find_damage(database, ("facts",))
        except sqlite3.DatabaseError as error:
            raise DatabaseDamage(
                folder, f"{folder / DATABASE} is not a run's database ({error})"
            ) from error
        if damage:
            raise make_damage_error(folder, damage)
        undo.pop_all()
        return database


def check_log(folder: Path) -> None:
    """Raise StoreError if the write-ahead log of a run's database is damaged. Report damage to the
    last transaction, which SQLite drops.
    """
    name = f"{DATABASE}-wal"
    try:
        damage = find_log_damage(folder / DATABASE)
    except OSError as error:
        raise StoreError(f"cannot read {folder / name}: {error.strerror or error}") from error
    if damage is None:
        return
    if not damage.last:
        raise make_damage_error(folder, [f"{name} {damage.problem}"])
    log.error(
        "%s %s: dropped the last transaction, which a power cut or the disk left damaged",
        folder / name,
        damage.problem,
    )


def make_damage_error(folder: Path, damage: list[str]) -> DatabaseDamage:
    """Return the error to raise for a database with these damaged parts."""
    parts = f"{', '.join(damage[:5])}{' ...' if len(damage) > 5 else ''}"
    return DatabaseDamage(folder, f"{folder / DATABASE} is damaged ({parts})")


def update_copy(
    folder: Path, database: sqlite3.Connection, check: Callable[[], None] = lambda: None
) -> None:
    """Write the present state of a run's database, its log included, to the copy. Only blocks that
    changed are written, since a long run's database grows. A crash meanwhile damages the copy,
    which the next call repairs. Raises OSError, sqlite3.Error.

    check: called once the copy is open; raises if this process may not write.
    """
    if not hasattr(database, "serialize"):
        return  # SQLite is older than 3.36
    data, path = memoryview(database.serialize()), folder / COPY
    new = not path.exists()
    with path.open("x+b" if new else "r+b") as file:
        check()
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            file.seek(start)
            if file.read(len(block)) != block:
                file.seek(start)
                file.write(block)
        file.truncate(len(data))
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(folder)


def find_copy_damage(folder: Path) -> list[str]:
    """Return the damage to the copy of a run's database, in words."""
    if not (folder / COPY).exists():
        return ["it is missing"]
    with closing(sqlite3.connect(folder / COPY)) as database:
        return database_row_digests.find_damage(database)


def restore_copy(folder: Path) -> bool:
    """Replace a damaged database by its copy, and keep the damaged files as `damaged-NAME`. Return
    False, and change nothing, if the copy is damaged. Raises OSError, sqlite3.Error.
    """
    if find_copy_damage(folder):
        return False
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        path, damaged = folder / name, folder / f"damaged-{name}"
        if path.exists() and name == DATABASE:
            damaged.unlink(missing_ok=True)
            damaged.hardlink_to(path)  # so that the run has a database at any time
        elif path.exists():
            path.replace(damaged)
    (folder / COPY).replace(folder / DATABASE)
    sync(folder)
    return True


def write_facts(database: sqlite3.Connection, facts: Facts) -> None:
    """Write the description of a run; within the caller's transaction."""
    chosen, left = split_settings(facts.config, facts.defaults)
    values = {
        "config": chosen,
        "defaults": left,
        "network": msgspec.to_builtins(facts.network),
        "menu": msgspec.to_builtins(facts.menu),
        "reach": facts.reach,
    }
    database.executemany(
        "INSERT OR REPLACE INTO facts VALUES (?, ?)",
        [(key, json.dumps(value)) for key, value in values.items()],
    )
    database_row_digests.seal(database, "facts")


def split_settings(
    config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that differ from their defaults, and the others; both with the tables
    that they are in.
    """
    chosen, left = dict[str, Any](), dict[str, Any]()
    for key, value in config.items():
        known = defaults.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            for name, one in value.items():
                same = name in known and known[name] == one
                (left if same else chosen).setdefault(key, {})[name] = one
        else:
            (left if key in defaults and value == known else chosen)[key] = value
    return chosen, left


def join_settings(chosen: Mapping[str, Any], left: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `split_settings` returned as two."""
    joined = {**left, **chosen}
    for key in left.keys() & chosen.keys():
        joined[key] = {**left[key], **chosen[key]}
    return joined


def write_round(
    database: sqlite3.Connection, done: RoundRecord, checkpoint: str, digest: str
) -> None:
    """Write a finished round; within the caller's transaction. checkpoint: name of its file.
    digest: sha256 of the file.
    """
    fleet = json.dumps(
        [[msgspec.to_builtins(submodel), count] for submodel, count in done.fleet.items()]
    )
    row = (
        done.round,
        datetime.now(UTC).isoformat(),
        done.seconds,
        checkpoint,
        fleet,
        done.bytes_up,
        done.bytes_down,
        digest,
    )
    database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    database.executemany(
        "INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(done.round, *ENTERED(e), e.task or done.round) for e in done.entries],
    )
    database.executemany(
        "INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                done.round,
                s.submodel,
                s.view,
                s.agent,
                s.accuracy,
                s.loss,
                s.examples,
                json.dumps(s.metrics),
            )
            for s in done.scores
        ],
    )
    for part in ("rounds", "updates", "scores"):
        database_row_digests.seal(database, part, done.round)
