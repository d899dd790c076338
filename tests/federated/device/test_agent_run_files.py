"""The files in an agent's folder that the next process finds, and those that are removed."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from federated.device.agent_run_files import AGE, InUse, Spool, SpooledUpdate, identify_run
from federated.errors import StoreError
from federated.runtime import atomic_files
from federated.wire.chunks import split
from tests.support.scripted_coordinator import CARD, open_spool, task

UPDATE = bytes(range(200)) * 10


def finished(spool: Spool, round: int = 1, update: bytes = UPDATE, run=CARD) -> SpooledUpdate:
    path = spool.update_path(task(round).transfer)
    path.write_bytes(update)
    kept = SpooledUpdate(task(round), split(update, 1024, task(round).transfer), path)
    spool.note(kept, run)
    return kept


def test_the_next_process_finds_a_finished_update(tmp_path: Path) -> None:
    kept = finished(first := open_spool(tmp_path))
    first.close()
    assert list(open_spool(tmp_path).load_updates(CARD)) == [kept]


def test_a_restarted_coordinator_continues_the_same_run(tmp_path: Path) -> None:
    assert identify_run(CARD) == identify_run(replace(CARD, session="s2"))
    assert identify_run(CARD) != identify_run(replace(CARD, method="fedavg"))
    kept = finished(spool := open_spool(tmp_path))
    assert list(spool.load_updates(replace(CARD, session="s2"))) == [kept]
    assert list(spool.load_updates(replace(CARD, batch=16))) == []
    assert list(spool.load_updates(CARD)) == [], "of a run that changed, nothing stays"


@pytest.mark.parametrize(
    "what",
    [
        "the update is cut",
        "the update changed",
        "the note is cut",
        "there is no note",
        "there is no update",
    ],
)
def test_incomplete_or_damaged_updates_are_removed(tmp_path: Path, what: str) -> None:
    kept = finished(spool := open_spool(tmp_path))
    note = kept.path.with_suffix(".task")
    match what:
        case "the update is cut":
            os.truncate(kept.path, 100)
        case "the update changed":
            kept.path.write_bytes(UPDATE[::-1])
        case "the note is cut":
            os.truncate(note, 20)
        case "there is no note":
            note.unlink()
        case "there is no update":
            kept.path.unlink()
    assert list(spool.load_updates(CARD)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_of_a_note_is_found_or_changes_nothing(tmp_path: Path) -> None:
    kept = finished(spool := open_spool(tmp_path))
    note = kept.path.with_suffix(".task")
    written, unchanged = note.read_bytes(), 0
    for place in range(len(written)):
        damaged = bytearray(written)
        damaged[place] ^= 1 << (place % 8)
        note.write_bytes(damaged)
        kept.path.write_bytes(UPDATE)
        found = list(spool.load_updates(CARD))
        assert found in ([], [kept]), place
        unchanged += found == [kept]
    note.write_bytes(written)
    kept.path.write_bytes(UPDATE)
    assert list(spool.load_updates(CARD)) == [kept]
    assert unchanged <= len("digest"), "only without its name is the digest not checked"


def test_only_resumable_files_stay(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"w").hexdigest()
    there = [f"{digest}.weights", f"{'0' * 64}.weights.part", f"{'0' * 64}.weights.have"]
    for name in (
        *there,
        "x.weights",
        "1-1-train.update.part",
        "core",
        "1-1-train-w1.task.1-ab.part",
    ):
        (tmp_path / name).write_bytes(b"w")
    (tmp_path / "memory").mkdir()
    (tmp_path / "old").mkdir()
    spool = open_spool(tmp_path)
    assert list(spool.load_updates(CARD)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*there, "memory"])
    assert spool.list_downloads() == {digest: tmp_path / there[0]}
    assert spool.is_intact(tmp_path / there[0])
    (tmp_path / there[0]).write_bytes(b"v")
    assert not spool.is_intact(tmp_path / there[0])
    spool.remove_partial(keep=["1" * 64])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([there[0], "memory"])


def test_an_answered_update_leaves_nothing(tmp_path: Path) -> None:
    kept = finished(spool := open_spool(tmp_path))
    spool.remove_update(kept.manifest.transfer)
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_is_not_lasting_writes_no_notes_and_keeps_nothing(tmp_path: Path) -> None:
    finished(spool := Spool(tmp_path))
    assert list(spool.load_updates(CARD)) == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".update"]
    assert spool.list_downloads() == {}
    assert spool.excess() == 0


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    first = open_spool(tmp_path)
    with pytest.raises(
        InUse,
        match=r"another agent of this name: give each agent its own --name, or its own --spool",
    ):
        open_spool(tmp_path)
    first.close()
    first.close()
    open_spool(tmp_path).close()


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot use .*a file is in place"):
        open_spool(tmp_path / "file" / "spool")


def test_a_note_that_cannot_be_written_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "write", full)
    with caplog.at_level(logging.WARNING):
        kept = finished(open_spool(tmp_path))
    assert "a restart would lose the update" in caplog.text
    assert "No space left on device" in caplog.text
    assert kept.path.read_bytes() == UPDATE


def test_the_limit_counts_weights_and_updates_and_not_the_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path, lasting=True, limit=1000)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "1.kept").write_bytes(bytes(5000))
    (tmp_path / "a.weights").write_bytes(bytes(900))
    assert spool.excess() == 0
    (tmp_path / "b.update").write_bytes(bytes(300))
    assert spool.excess() == 200


def test_old_unused_folders_of_other_runs_are_removed(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "now" / "a")
    old, held, young = (open_spool(tmp_path / run / "a") for run in ("old", "held", "young"))
    for other in (old, held, young):
        finished(other)
        (other.folder / "memory").mkdir()
        (other.folder / "memory" / "1.kept").write_bytes(b"k")
    old.close()
    young.close()
    now = time.time() + AGE + 1
    for path in young.folder.rglob("*"):
        os.utime(path, (now - 10, now - 10))
    spool.tidy(tmp_path.glob("*/a"), now)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "now", "young"]
    assert len(list(held.folder.glob("*.update"))) == len(list(young.folder.glob("*.update"))) == 1


@pytest.mark.parametrize("written", [0.0, 4e9], ids=["in 1970", "in the future"])
def test_a_file_with_an_impossible_age_is_kept(tmp_path: Path, written: float) -> None:
    kept = finished(spool := open_spool(tmp_path))
    os.utime(kept.path, (written, written))
    spool.tidy([])
    assert kept.path.exists()
    assert abs(kept.path.stat().st_mtime - time.time()) < 60


def test_the_epoch_survives_restarts_and_idle_weeks(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    assert spool.load_epoch() == 0
    spool.note_epoch(1_700_000_000_000)
    spool.close()
    spool = open_spool(tmp_path)
    spool.tidy([], time.time() + AGE + 1)
    assert list(spool.load_updates(CARD)) == []
    assert spool.load_epoch() == 1_700_000_000_000
    spool.clear()
    assert spool.load_epoch() == 0
    spool.close()


def test_every_flipped_bit_of_the_epoch_is_found(tmp_path: Path) -> None:
    (spool := open_spool(tmp_path)).note_epoch(1234)
    (path,) = tmp_path.iterdir()
    written = path.read_bytes()
    for place in range(8 * len(written)):
        damaged = bytearray(written)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert spool.load_epoch() == 0
    spool.close()
