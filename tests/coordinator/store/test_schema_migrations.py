"""A run of an earlier version is migrated completely or not at all, and resumed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from coordinator.settings.config import read_tables
from coordinator.store import schema_migrations
from coordinator.store.control_requests import Control
from coordinator.store.run_folders import DATABASE
from coordinator.store.run_store import Store
from coordinator.views.run_damage_check import check_run
from federated.errors import StoreError
from models.submodel_building import initial
from tests.support.memory_federation import RUN, Member, digits, federate

# as version 0.1.0 wrote it, until it was killed in round 3
OLD = Path(__file__).with_name("schema_1.sql").read_text()
KEPT = f"schema-1-{DATABASE}"
SETTINGS: dict[str, Any] = {
    "model.name": "mlp-small",
    "method.widths": [0.5, 1.0],
    "train.steps": 2,
    "rounds": 4,
    "evaluate.examples": 20,
    "fleet.late": "take",
}
BY_ROUND = ("rounds", "updates", "scores", "decisions", "norms")
BY_AGENT = ("standings", "profiles")
KILLED = """
import os, signal, sys
from pathlib import Path
from coordinator.store import schema_migrations
from coordinator.store.run_store import Store
function = getattr(schema_migrations, {name!r})
def die(*given):
    function(*given)
    os.kill(os.getpid(), signal.SIGKILL)
schema_migrations.{name} = die
Store.open(Path({root!r}), {run!r})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of such a run, with the checkpoints of its two rounds."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True, mode=0o700)
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(OLD)
    with closing(Store.open(folder.parent, RUN, read_only=True)) as store:
        network = store.read_facts().network
    assert network is not None
    for number in (1, 2):
        tensors = initial(network, number, frozenset())
        save_file(tensors, folder / f"round-{number:06d}.safetensors", {"touched": "{}"})
    return folder


def dump(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


def read_rows(path: Path, *tables: str) -> dict[str, list[Any]]:
    """Return rows without the digests of checkpoints, and without those of later rounds."""
    with closing(sqlite3.connect(path)) as database:
        found = {one: database.execute(f"SELECT * FROM {one}").fetchall() for one in tables}
    found["rounds"] = [row[:7] for row in found["rounds"]]
    assert all(found.values())
    return {
        one: [row for row in rows if one in BY_AGENT or row[0] < 3] for one, rows in found.items()
    }


def test_a_run_of_version_0_1_0_is_resumed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, before = dump(folder / DATABASE), read_rows(folder / DATABASE, *BY_ROUND)
    done = federate(
        tmp_path, [Member(f"a{i}", digits(i, 3)) for i in range(3)], SETTINGS, resume=True
    )
    assert done.result.state.round == 4
    assert read_rows(folder / DATABASE, *BY_ROUND) == before
    assert dump(folder / KEPT) == old
    assert "round 3 was in progress and starts over" in caplog.text
    assert "2 open tasks of earlier rounds" in caplog.text
    assert check_run(RUN, folder.parent, repair=False)["damaged"] == []


def test_reading_a_run_of_an_earlier_schema_leaves_it_as_it_is(folder: Path) -> None:
    old = dump(folder / DATABASE)
    with closing(Store.open(folder.parent, RUN, read_only=True)) as store:
        assert read_tables(store.read_facts().config).rounds == 4
        last = store.read_last()
    assert last is not None
    assert last.round == 2
    assert last.scores
    assert check_run(RUN, folder.parent, repair=False)["damaged"] == []
    assert dump(folder / DATABASE) == old
    assert not (folder / KEPT).exists()


def test_a_repair_of_the_log_does_not_migrate(folder: Path) -> None:
    name = f"{DATABASE}-wal"
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        for number in range(2):
            with database:
                database.execute("INSERT INTO facts VALUES (?, '1')", (f"key {number}",))
        data = bytearray((folder / name).read_bytes())
    data[-9] ^= 4
    (folder / name).write_bytes(data)
    (found,) = check_run(RUN, folder.parent, repair=True)["damaged"]
    assert (found["file"], found["repaired"]) == (name, True)
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        assert schema_migrations.read_version(database) == 1


@pytest.mark.parametrize("name", ["sync", "seal_all"])
def test_a_migration_that_is_killed_loses_nothing(folder: Path, name: str) -> None:
    tables = (*BY_ROUND, *BY_AGENT)
    old, before = dump(folder / DATABASE), read_rows(folder / DATABASE, *tables)
    code = KILLED.format(name=name, root=str(folder.parent), run=RUN)
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert dump(folder / DATABASE) == old
    Store.open(folder.parent, RUN).close()
    assert read_rows(folder / DATABASE, *tables) == before
    assert dump(folder / KEPT) == old


def test_a_migration_that_fails_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, step = dump(folder / DATABASE), schema_migrations.STEPS[1]

    def fail(database: sqlite3.Connection, where: Path | None) -> list[str]:
        step(database, where)
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(schema_migrations.STEPS, 1, fail)
    with pytest.raises(
        StoreError, match=r"cannot migrate .* from schema 1 to 2: No space.*unchang"
    ):
        Store.open(folder.parent, RUN)
    assert dump(folder / DATABASE) == old


def test_a_round_without_its_checkpoint_is_trained_again(folder: Path) -> None:
    (folder / "round-000002.safetensors").unlink()
    with closing(Store.open(folder.parent, RUN)) as store:
        last = store.read_last()
    assert last is not None
    assert last.round == 1


def test_a_pause_holds_over_a_migration(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("INSERT INTO wishes VALUES ('pause', 'pause', '2026-01-01', 1)")
    Store.open(folder.parent, RUN).close()
    with closing(Control(folder)) as control:
        assert control.paused


def test_a_store_of_a_later_version_is_refused(folder: Path) -> None:
    Store.open(folder.parent, RUN).close()
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("DROP TABLE rounds")  # its tables may be others
        database.execute("PRAGMA user_version=99")
    (folder / KEPT).rename(folder / f"schema-2-{DATABASE}")
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"later version .*found 99.*go back to .*schema-2"):
            Store.open(folder.parent, RUN, read_only=read_only)
    with pytest.raises(StoreError, match="found 99"):
        check_run(RUN, folder.parent, repair=True)


def test_a_database_that_is_emptied_is_restored_from_its_copy(folder: Path) -> None:
    """It has the same schema number as that of version 0.1.0: none."""
    Store.open(folder.parent, RUN).close()
    with closing(Store.open(folder.parent, RUN)) as store:
        store.next_session()
    old = dump(folder / KEPT)
    for name in DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm":
        (folder / name).unlink(missing_ok=True)
    (folder / DATABASE).touch()
    with pytest.raises(StoreError, match=r"is not a run's database .*resume the run"):
        Store.open(folder.parent, RUN, read_only=True)
    (found,) = check_run(RUN, folder.parent, repair=False)["damaged"]
    assert found["repairable"]
    with closing(Store.open(folder.parent, RUN)) as store:
        assert store.rounds_done == 2
    assert dump(folder / KEPT) == old


@pytest.mark.parametrize("name", [b"round-000002.safetensors", "../other", "/etc/hostname", "x"])
def test_a_checkpoint_of_another_name_is_not_read(folder: Path, name: str | bytes) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("UPDATE rounds SET checkpoint = ? WHERE round = 2", (name,))
    old = dump(folder / DATABASE)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"checkpoint of round 2: expected 'round-000002"):
            Store.open(folder.parent, RUN, read_only=read_only)
    assert dump(folder / DATABASE) == old


def test_a_row_without_a_round_is_refused(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("UPDATE updates SET round = 'x' WHERE rowid = 1")
    old = dump(folder / DATABASE)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"updates: expected a number as round, found 'x'"):
            Store.open(folder.parent, RUN, read_only=read_only)
    assert dump(folder / DATABASE) == old
