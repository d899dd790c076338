"""Damage to a run's folder is detected and reported before training."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from coordinator.assign.agent_track_record import Standing
from coordinator.assign.decision_record import Decision
from coordinator.database_row_digests import find_damage
from coordinator.observe.round_records import Entry, RoundRecord, Score
from coordinator.store.database import COPY, Facts, find_copy_damage
from coordinator.store.folder_check import allow_new_journal, find_problem, may_begin_journal
from coordinator.store.run_store import Store
from coordinator.trust.norm_and_privacy_tables import ChangeNorm
from coordinator.views.run_damage_check import check_run
from federated.errors import StoreError
from federated.runtime.sqlite_wal_damage import find_log_damage
from tests.support.scripted_agent import PROFILE


def done(number: int) -> RoundRecord:
    tensors = {"w": torch.arange(64.0) + number}
    entries = [Entry("a", "w1", "folded", 10, 2, 0.5, 1.0)]
    scores = [Score("w1", "central", 0.25, 1.5, 8)]
    return RoundRecord(number, 2.0, tensors, {}, entries, scores, standings={"a": Standing()})


def make_run(root: Path, rounds: int) -> Path:
    """A run with rows in every table."""
    store = Store.create(root, "r", Facts({"rounds": 9}))
    store.next_session()
    for number in range(1, rounds + 1):
        decision = Decision("a", "w1", True, "first", 0.1, 1.0, 7)
        store.agents.write_decisions(number, {"a": decision}, {"a": PROFILE})
        store.trust.write_norms([ChangeNorm(number, "a", "w1", "weights", 1.5)])
        store.trust.write_costs(number, {"a": 0.5})
        store.save(done(number))
    store.close()
    return root / "r"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    folder = make_run(tmp_path, 3)
    damage(folder / "round-000003.safetensors")
    with pytest.raises(StoreError, match=r"round-000003.safetensors is .*coordinator check r"):
        Store.open(tmp_path, "r", read_only=True).read_last()
    store = Store.open(tmp_path, "r")
    last = store.read_last()
    assert last is not None
    assert (last.round, last.tensors["w"][0]) == (2, 2.0)
    assert "discarded round 3, which is trained again: round-000003.safetensors is" in caplog.text
    assert store.may_begin_journal
    assert [number for number, *_ in store.read_history()] == [1, 2]
    assert (store.read_entries(3), store.read_scores(3)) == ([], [])
    assert store.trust.read_costs() == {"a": 1.5}, "someone may have seen round 3"
    assert len(list(folder.glob("damaged-*"))) == (damage is not Path.unlink)
    store.save(done(3))
    store.close()
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == 3
    store.close()


def test_rounds_without_any_intact_checkpoint_are_an_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 3)
    for path in folder.glob("round-*"):
        flip(path)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(StoreError, match=r"no checkpoint in .* can be read"):
        Store.open(tmp_path, "r")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_first_round_that_is_damaged_starts_over(tmp_path: Path) -> None:
    flip(make_run(tmp_path, 1) / "round-000001.safetensors")
    store = Store.open(tmp_path, "r")
    assert (store.rounds_done, store.read_last(), store.may_begin_journal) == (0, None, True)
    store.close()


def test_a_checkpoint_that_a_crash_left_unnamed_goes_with_the_damaged_one_before(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path, 3)
    flip(folder / "round-000003.safetensors")
    shutil.copy(folder / "round-000002.safetensors", folder / "round-000004.safetensors")
    for _ in range(2):
        store = Store.open(tmp_path, "r")
        assert store.rounds_done == 2
        store.close()


def test_a_damaged_earlier_checkpoint_is_not_used(tmp_path: Path) -> None:
    flip(make_run(tmp_path, 3) / "round-000002.safetensors")
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == 3
    with pytest.raises(StoreError, match=r"round-000002.safetensors of a late update"):
        store.read_checkpoint(2)
    store.close()


def test_a_checkpoint_before_one_that_was_set_aside_is_checked(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.kept = 3
    for number in (1, 2, 3):
        store.save(done(number))
    store.close()
    folder = tmp_path / "r"
    flip(folder / "round-000002.safetensors")
    check_run("r", tmp_path, repair=True)
    flip(folder / "round-000001.safetensors")
    with closing(Store.open(tmp_path, "r")) as store:
        with pytest.raises(StoreError, match=r"round-000001.*damaged"):
            store.read_checkpoint(1)
        with pytest.raises(StoreError, match=r"round-000004.*no finished round 4"):
            store.read_checkpoint(4)
    (found,) = check_run("r", tmp_path, repair=False)["damaged"]
    assert found["file"] == "round-000001.safetensors"


def test_no_file_has_an_unknown_digest(tmp_path: Path) -> None:
    (tmp_path / "update").write_bytes(b"one")
    assert find_problem(tmp_path / "update", hashlib.sha256(b"one").hexdigest()) == ""
    assert "is damaged" in find_problem(tmp_path / "update", "")


def test_a_database_that_lost_its_log_does_not_begin_at_round_one(tmp_path: Path) -> None:
    empty, folder = make_run(tmp_path / "empty", 0), make_run(tmp_path, 3)
    (folder / COPY).unlink()
    shutil.copy(empty / "run.sqlite", folder / "run.sqlite")
    with pytest.raises(StoreError, match=r"after round 0, but .* round-000003.*run.sqlite-wal"):
        Store.open(tmp_path, "r")
    (folder / "run.sqlite").unlink()
    with pytest.raises(StoreError, match=r"has round-000003.safetensors but no run.sqlite"):
        Store.create(tmp_path, "r")
    assert len(list(folder.glob("round-*"))) == 2


def test_a_run_whose_journal_is_lost_may_not_begin_another(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 1)
    database = sqlite3.connect(folder / "run.sqlite")
    assert not may_begin_journal(folder, database)
    allow_new_journal(folder, database)
    assert may_begin_journal(folder, database)
    database.close()
    store = Store.open(tmp_path, "r")
    assert store.may_begin_journal
    store.save(done(2))
    assert not store.may_begin_journal, "the next checkpoint has a journal of its own"
    store.close()


CHANGES = {
    "facts": "UPDATE facts SET value = replace(value, '9', '8') WHERE key = 'config'",
    "rounds": "UPDATE rounds SET seconds = 2.5 WHERE round = 1",
    "updates": "UPDATE updates SET samples = 11 WHERE round = 2",
    "scores": "UPDATE scores SET accuracy = 0.75 WHERE round = 2",
    "standings": "UPDATE standings SET standing = replace(standing, '1', '3')",
    "decisions": "UPDATE decisions SET submodel = 'w0' WHERE round = 2",
    "profiles": "UPDATE profiles SET agent = 'b'",
    "norms": "UPDATE norms SET norm = 1.25 WHERE round = 1",
    "releases": "UPDATE releases SET cost = 0.25 WHERE release = 2",
    "rounds of round 1": "DELETE FROM rounds WHERE round = 1",
    "unknown table 'round'": "UPDATE digests SET part = 'round' WHERE part = 'rounds'",
    "updates of round 3": "UPDATE digests SET number = 3 WHERE part = 'updates' AND number = 2",
    "expected a number as round, found 'x'": "UPDATE updates SET round = 'x' WHERE round = 2",
    "expected a number as number, found 'x'": "UPDATE digests SET number = 'x' WHERE number = 2",
}


@pytest.mark.parametrize("part", CHANGES)
def test_every_changed_row_is_found(tmp_path: Path, part: str) -> None:
    folder = make_run(tmp_path, 2)
    database = sqlite3.connect(folder / "run.sqlite")
    assert find_damage(database) == []
    with database:
        assert database.execute(CHANGES[part]).rowcount
    assert any(part in found for found in find_damage(database))
    database.close()
    (folder / COPY).unlink()
    with pytest.raises(StoreError, match=r"run.sqlite is damaged .*backup"):
        Store.open(tmp_path, "r")


def test_a_run_whose_digests_are_missing_is_damaged(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 1)
    database = sqlite3.connect(folder / "run.sqlite")
    database.execute("DROP TABLE digests")
    database.close()
    (folder / COPY).unlink()
    with pytest.raises(StoreError, match=r"run.sqlite is damaged .*digests"):
        Store.open(tmp_path, "r")


# ---- the write-ahead log -------------------------------------------------------------------------

LAST = 3  # round of the last transaction


def interrupt(root: Path) -> Path:
    """A run whose coordinator was killed: its last rounds are in the write-ahead log only."""
    store = Store.create(root / "live", "r", Facts({"rounds": 9}))
    for number in range(1, LAST + 1):
        store.save(done(number))
    shutil.copytree(root / "live" / "r", root / "r")
    store.close()
    return root / "r"


def flip_in_frame(log: Path, number: int, at: int) -> None:
    """Flip a bit of a frame, counted from 0, or from -1 for the last one."""
    data = bytearray(log.read_bytes())
    size = 24 + int.from_bytes(data[8:12], "big")
    data[32 + number % ((len(data) - 32) // size) * size + at] ^= 0x04
    log.write_bytes(data)


def test_an_intact_write_ahead_log_is_not_damaged(tmp_path: Path) -> None:
    folder = interrupt(tmp_path)
    assert find_log_damage(folder / "run.sqlite") is None
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == LAST
    store.close()


@pytest.mark.parametrize("at", [2, 9, 17, 24, 3000], ids=["page", "salt", "sum", "type", "row"])
def test_a_damaged_transaction_before_others_is_found(tmp_path: Path, at: int) -> None:
    folder = interrupt(tmp_path)
    log = folder / "run.sqlite-wal"
    flip_in_frame(log, 1, at)
    damaged = log.read_bytes()
    (folder / COPY).unlink()
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"run.sqlite is damaged .*-wal .*frame 2 .*backup"):
            Store.open(tmp_path, "r", read_only=read_only)
    (found,) = check_run("r", tmp_path, repair=True)["damaged"]
    assert found["file"] == "run.sqlite-wal"
    assert not found["repaired"]
    assert log.read_bytes() == damaged  # for a person to look at


@pytest.mark.parametrize("at", [0, 10, 18, 29], ids=["magic", "size", "salt", "sum"])
def test_a_damaged_header_of_the_log_is_found(tmp_path: Path, at: int) -> None:
    folder = interrupt(tmp_path)
    log = folder / "run.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[at] ^= 0x01
    log.write_bytes(data)
    (folder / COPY).unlink()
    with pytest.raises(StoreError, match=r"-wal is damaged in its header"):
        Store.open(tmp_path, "r")


# ---- the copy ------------------------------------------------------------------------------------


def damage_log(folder: Path) -> None:
    flip_in_frame(folder / "run.sqlite-wal", 1, 3000)


def drop_log(folder: Path) -> None:
    (folder / "run.sqlite-wal").unlink()


def damage_row(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        database.execute(CHANGES["rounds"])


def damage_page(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray((folder / "run.sqlite").read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    (folder / "run.sqlite").write_bytes(data)


def overwrite(folder: Path) -> None:
    drop_log(folder)
    (folder / "run.sqlite").write_bytes(b"no database" * 1000)


DAMAGE = [damage_log, drop_log, damage_row, damage_page, overwrite]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_database_is_replaced_by_its_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    folder = interrupt(tmp_path)
    damage(folder)
    broken = (folder / "run.sqlite").read_bytes()
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == LAST
    assert "replaced by its copy" in caplog.text
    assert len(broken) <= (folder / "damaged-run.sqlite").stat().st_size
    store.save(done(LAST + 1))
    store.close()
    assert find_copy_damage(folder) == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_takes_the_copy_of_a_damaged_database(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = interrupt(tmp_path)
    damage(folder)
    (found,) = check_run("r", tmp_path, repair=False)["damaged"]
    assert found["repairable"]
    assert not (folder / "damaged-run.sqlite").exists()
    (found,) = check_run("r", tmp_path, repair=True)["damaged"]
    assert found["repaired"]
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == LAST
    store.close()


def test_a_damaged_copy_is_removed_and_written_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    data = (folder / COPY).read_bytes()
    (folder / COPY).write_bytes(data[: len(data) // 2])
    found = {
        one["file"]: one["repaired"] for one in check_run("r", tmp_path, repair=True)["damaged"]
    }
    assert found[COPY]
    store = Store.open(tmp_path, "r")
    store.save(done(3))
    store.close()
    assert find_copy_damage(folder) == []


def test_the_copy_is_the_database_after_each_round(tmp_path: Path) -> None:
    """Later rounds write only blocks that changed."""
    store = Store.create(tmp_path, "r", Facts({"rounds": 9}))
    for number in range(1, 4):
        store.save(done(number))
        with (
            closing(sqlite3.connect(tmp_path / "r" / COPY)) as copy,
            closing(sqlite3.connect(tmp_path / "r" / "run.sqlite")) as database,
        ):
            assert list(copy.iterdump()) == list(database.iterdump())
    store.close()


def test_a_damaged_last_transaction_is_dropped_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut leaves the same."""
    folder = interrupt(tmp_path)
    flip_in_frame(folder / "run.sqlite-wal", -1, 3000)
    found = check_run("r", copy_run(tmp_path), repair=True)["damaged"][0]
    assert (found["file"], found["repaired"]) == ("run.sqlite-wal", True)
    store = Store.open(tmp_path, "r")
    assert store.rounds_done == LAST - 1
    store.close()
    assert "dropped the last transaction" in caplog.text


def copy_run(root: Path) -> Path:
    """Return a folder with a copy of the run."""
    shutil.copytree(root / "r", root / "copy" / "r")
    return root / "copy"


def test_pages_of_an_earlier_use_of_the_log_are_not_damage(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "run.sqlite")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE made (value TEXT)")
    for _ in range(20):
        with database:
            database.execute("INSERT INTO made VALUES (?)", ("x" * 1000,))
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    with database:
        database.execute("DELETE FROM made WHERE rowid = 1")
    assert find_log_damage(tmp_path / "run.sqlite") is None
    flip_in_frame(tmp_path / "run.sqlite-wal", -1, 3000)  # not read any more
    assert find_log_damage(tmp_path / "run.sqlite") is None
    database.close()
