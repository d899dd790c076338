"""`coordinator check` finds every damaged file of a run, says what to do, and repairs it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from coordinator import audit_log
from coordinator.cli.main import main
from coordinator.fleet.update_file_names import update_path
from coordinator.observe.round_records import RoundRecord
from coordinator.release.archive import Archive
from coordinator.release.history import History, SoftwareHistory
from coordinator.release.history_file import HistoryFile
from coordinator.round import round_events as on
from coordinator.round.round_state import Round
from coordinator.store.database import COPY, Facts
from coordinator.store.journal import Base
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total
from federated.errors import StoreError
from federated.task import Key
from federated.wire.release_messages import Installed, Software
from tests.support.handmade_releases import toy

KEY = Key("a", "w1", 3, "train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run inside its third round, with a snapshot, an update in the spool and a release."""
    store = Store.create(tmp_path, "spring", Facts({"rounds": 9, "name": "spring"}))
    for number in (1, 2):
        store.save(RoundRecord(number, 2.0, {"w": torch.arange(64.0) + number}, {}), Round())
    digest = store.journal.write_total("total-000003-000001.safetensors", Total())
    base = Base(store.checkpoint_id, Round(), "total-000003-000001.safetensors", (), digest)
    store.journal.begin(base)
    store.journal.sweep()
    path = update_path(store.spool, KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"update")
    known = "2937013f2181810606b2a799b05bda2849f3e369a20982a4138f0e0a55984ce4"
    store.journal.append(on.UpdateCame(1.0, KEY, 1, "t", known, 0.5))
    store.journal.append(on.Ticked(2.0))
    store.close()
    archive = Archive(tmp_path, "spring")
    archive.add(toy(tmp_path / "made"))
    archive.write(History("spring"))
    return tmp_path / "spring"


def check(folder: Path, *flags: str) -> tuple[Result, dict[str, Any]]:
    words = ["check", folder.name, "--runs", str(folder.parent), "--format", "json", *flags]
    done = CliRunner().invoke(main, words)
    return done, json.loads(done.stdout.splitlines()[0])


def flip(path: Path, place: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def read_log(folder: Path) -> list[tuple[str, str]]:
    rows, damage = audit_log.read(folder / "run.sqlite")
    assert not damage
    assert all(row.who for row in rows)
    return [(row.what, row.about) for row in rows]


def test_an_intact_run_is_checked_as_a_whole(folder: Path) -> None:
    done, made = check(folder)
    assert (done.exit_code, made["damaged"]) == (0, [])
    parts = (
        "database",
        "copy",
        "2 checkpoints",
        "journal",
        "snapshot",
        "update",
        "history",
        "manifest",
    )
    assert made["checked"] == len(parts) + 1 + 3, "and three files of the release"
    shown = CliRunner().invoke(main, ["check", "spring", "--runs", str(folder.parent)])
    assert shown.output == f"run 'spring': checked {made['checked']} files, none damaged\n"


FILES = {
    "round-000002.safetensors": "round 2 is discarded and trained again",
    "round-000001.safetensors": "renamed",
    "journal-*.log": "cut off",
    "total-*.safetensors": "round 3 starts from its beginning",
    "spool/round-000003/*.update": "requested again",
}


@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_is_named_and_repaired(folder: Path, pattern: str) -> None:
    (path,) = folder.glob(pattern)
    flip(path)
    done, made = check(folder)
    (one,) = made["damaged"]
    assert (done.exit_code, one["file"]) == (7, str(path.relative_to(folder)))
    assert FILES[pattern] in one["remedy"]
    assert "is damaged" in done.stderr
    assert read_log(folder) == []
    done, made = check(folder, "--repair")
    assert (done.exit_code, [one["repaired"] for one in made["damaged"]]) == (0, [True])
    assert read_log(folder) == [("repair", one["file"])]
    done, made = check(folder)
    assert (done.exit_code, made["damaged"]) == (0, [])
    store = Store.open(folder.parent, "spring")
    assert store.rounds_done == (1 if "2" in pattern else 2)
    assert store.journal.read(store.checkpoint_id) or store.may_begin_journal
    store.close()


def test_a_journal_damaged_in_its_middle_or_lost_starts_the_round_over(folder: Path) -> None:
    (path,) = folder.glob("journal-*.log")
    flip(path, 40)
    for problem in ("is damaged", "is missing"):
        _, made = check(folder)
        assert [problem in one["problem"] for one in made["damaged"]] == [True]
        path.unlink(missing_ok=True)
    check(folder, "--repair")
    assert check(folder)[1]["damaged"] == []


def test_repair_leaves_damage_that_needs_a_person(folder: Path) -> None:
    (version,) = (path for path in (folder / "releases").iterdir() if path.is_dir())
    flip(version / "w1-d1.onnx")
    flip(folder / "releases" / "history.json", 12)
    orders: HistoryFile[Software, Installed] = HistoryFile(
        folder / "upgrades", "spring", SoftwareHistory
    )
    orders.write(History("spring"))
    flip(folder / "upgrades" / "history.json", 12)
    with sqlite3.connect(folder / "run.sqlite") as database:
        database.execute("UPDATE rounds SET seconds = 9")
    database.close()
    (folder / COPY).write_bytes(b"no database" * 500)
    done, made = check(folder, "--repair")
    assert done.exit_code == 7
    assert [(one["file"].rpartition("/")[2], one["repaired"]) for one in made["damaged"]] == [
        ("run.sqlite", False),
        (COPY, True),
        ("history.json", False),
        ("w1-d1.onnx", False),
        ("history.json", False),
    ]
    flip(version / "manifest.json", 30)
    assert any(one["file"].endswith("manifest.json") for one in check(folder)[1]["damaged"])
    assert read_log(folder) == [("repair", COPY)]
    (folder / "run.sqlite").write_bytes(b"nothing")
    (folder / COPY).write_bytes(b"no database" * 500)
    done, _ = check(folder, "--repair")
    assert not (folder / COPY).exists()
    assert "this repair is not in the audit log: " in done.stderr
    assert "cannot be read" in check(folder)[1]["damaged"][0]["problem"]
    (folder / "run.sqlite").unlink()
    assert "is missing" in check(folder)[1]["damaged"][0]["problem"]


def test_without_any_intact_checkpoint_nothing_is_repaired(folder: Path) -> None:
    for path in folder.glob("round-*"):
        flip(path)
    done, made = check(folder, "--repair")
    assert done.exit_code == 7
    damaged = {one["file"]: one["repaired"] for one in made["damaged"]}
    assert damaged == {f"round-00000{i}.safetensors": False for i in (1, 2)}
    assert len(list(folder.glob("round-*"))) == 2


def test_a_run_that_is_in_use_or_missing_is_an_error(folder: Path) -> None:
    store = Store.open(folder.parent, "spring")
    done = CliRunner().invoke(main, ["check", "spring", "--runs", str(folder.parent)])
    assert (done.exit_code, "another coordinator" in done.stderr) == (7, True)
    store.close()
    done = CliRunner().invoke(main, ["check", "autumn", "--runs", str(folder.parent)])
    assert (done.exit_code, "no run 'autumn'" in done.stderr) == (7, True)
    with pytest.raises(StoreError):
        Store.open(folder.parent, "autumn")
