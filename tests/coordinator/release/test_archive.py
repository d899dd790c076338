"""Releases of a run are kept whole, and their history is never half written."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.release.archive import Archive
from coordinator.release.history import History, Item, released
from export import bundle
from export.publish import version_of
from federated.errors import ExportError, StoreError
from tests.support.release import toy


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    return Archive(tmp_path / "runs", "spring")


def test_a_release_is_copied_whole_and_twice_is_fine(archive: Archive, tmp_path: Path) -> None:
    folder = toy(tmp_path / "made")
    (folder / "notes.txt").write_text("not of the release")
    (folder / "MODEL.md").write_text("for people")
    name = archive.take(folder)
    assert name == bundle.version(folder) == archive.take(folder)
    assert {path.name for path in archive.path(name).iterdir()} == {
        "MODEL.md",
        "manifest.json",
        "check.tensors",
        "w1-d1.onnx",
        "w1-d1.tensors",
    }
    (archive.path(name) / "w1-d1.onnx").write_bytes(b"damaged")
    archive.take(folder)
    assert bundle.read(archive.path(name)).run == "spring"


def test_a_damaged_release_is_not_taken(archive: Archive, tmp_path: Path) -> None:
    folder = toy(tmp_path / "made")
    (folder / "w1-d1.tensors").write_bytes(b"damaged")
    with pytest.raises(ExportError, match="expected sha256"):
        archive.take(folder)
    assert not list(archive.folder.iterdir())


def test_a_history_is_read_as_it_was_written_and_versions_nobody_wants_go(
    archive: Archive, tmp_path: Path
) -> None:
    assert archive.read() == History("spring")
    history = History("spring")
    for i in range(3):
        name = archive.take(toy(tmp_path / str(i), bytes([i + 1])))
        history = released(history, Item(version_of(archive.path(name), "spring", {})), f"t{i}")
    archive.write(history)
    assert archive.read() == history
    archive.prune(history)
    assert {path.name for path in archive.folder.iterdir()} == {
        "history.json",
        history.stable,
        history.previous,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"run": "spring", "stable": 1}',
        '{"run": "autumn"}',
        '{"run": "spring", "stable": "aaaaaaaaaaaa"}',
    ],
)
def test_a_damaged_or_foreign_history_is_named_and_stays(archive: Archive, text: str) -> None:
    path = archive.folder / "history.json"
    path.write_text(text)
    with pytest.raises(
        StoreError, match=r"history\.json: (not a history|expected a history of run 'spring')"
    ):
        archive.read()
    assert path.read_text() == text


def test_a_history_that_cannot_be_written_leaves_the_old_one(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.write(History("spring"))

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        archive.write(replace(History("spring"), agents=("pi",)))
    monkeypatch.undo()
    assert archive.read() == History("spring")
    assert [path.name for path in archive.folder.iterdir()] == ["history.json"]


def test_one_at_a_time_changes_it(archive: Archive) -> None:
    order: list[str] = []

    def other() -> None:
        with Archive(archive.folder.parents[1], "spring").changing():
            order.append("second")

    with archive.changing():
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_run_that_is_not_there_has_no_archive(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="releases of run 'none' cannot be kept"):
        Archive(tmp_path, "none")
