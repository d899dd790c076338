"""The archive of a run: complete releases, and a history that is written atomically."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.release.archive import Archive
from coordinator.release.history import History, Item, release
from export import bundle
from export.publish import version_of
from federated.errors import ExportError, StoreError
from tests.support.release import toy


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    return Archive(tmp_path / "runs", "spring")


def test_a_release_is_copied_completely_and_can_be_added_twice(
    archive: Archive, tmp_path: Path
) -> None:
    folder = toy(tmp_path / "made")
    (folder / "notes.txt").write_text("not of the release")
    (folder / "MODEL.md").write_text("for people")
    name = archive.add(folder)
    assert name == bundle.version(folder) == archive.add(folder)
    assert {path.name for path in archive.path(name).iterdir()} == {
        "MODEL.md",
        "manifest.json",
        "check.tensors",
        "w1-d1.onnx",
        "w1-d1.tensors",
    }
    (archive.path(name) / "w1-d1.onnx").write_bytes(b"damaged")
    archive.add(folder)
    assert bundle.read(archive.path(name)).run == "spring"


def test_a_damaged_release_is_refused(archive: Archive, tmp_path: Path) -> None:
    folder = toy(tmp_path / "made")
    (folder / "w1-d1.tensors").write_bytes(b"damaged")
    with pytest.raises(ExportError, match="expected sha256"):
        archive.add(folder)
    assert not list(archive.folder.iterdir())


def test_a_history_round_trips_and_unneeded_versions_are_deleted(
    archive: Archive, tmp_path: Path
) -> None:
    assert archive.read() == History("spring")
    history = History("spring")
    for i in range(3):
        name = archive.add(toy(tmp_path / str(i), bytes([i + 1])))
        history = release(history, Item(version_of(archive.path(name), "spring", {})), f"t{i}")
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
def test_a_damaged_or_foreign_history_is_an_error_and_stays(archive: Archive, text: str) -> None:
    path = archive.folder / "history.json"
    path.write_text(text)
    with pytest.raises(
        StoreError, match=r"history\.json: (not a history|expected a history of run 'spring')"
    ):
        archive.read()
    assert path.read_text() == text


def test_a_failed_write_leaves_the_old_history(
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


def test_the_lock_excludes_other_processes(archive: Archive) -> None:
    order: list[str] = []

    def other() -> None:
        with Archive(archive.folder.parents[1], "spring").lock():
            order.append("second")

    with archive.lock():
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_missing_run_has_no_archive(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="releases of run 'none'"):
        Archive(tmp_path, "none")
