"""The archive of a run: complete releases, and a history that is written atomically."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from coordinator.release.archive import Archive
from coordinator.release.history import History, Item, compute_digest, release
from export import release_reader
from export.broker_publishing import describe_version
from federated.errors import ExportError, StoreError
from federated.runtime import atomic_files
from tests.support.disk_calls import record_disk_calls
from tests.support.handmade_releases import toy


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
    assert name == release_reader.read_version(folder) == archive.add(folder)
    assert {path.name for path in archive.path(name).iterdir()} == {
        "MODEL.md",
        "manifest.json",
        "check.tensors",
        "w1-d1.onnx",
        "w1-d1.tensors",
    }
    (archive.path(name) / "w1-d1.onnx").write_bytes(b"damaged")
    archive.add(folder)
    assert release_reader.read(archive.path(name)).run == "spring"


def test_a_release_is_on_the_disk_before_it_has_its_name(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_disk_calls(monkeypatch)
    name = archive.add(toy(tmp_path / "made"))
    renamed = calls.index(("rename", str(archive.path(name))))
    synced = {Path(path).name for call, path in calls[:renamed] if call == "fsync"}
    assert synced >= {path.name for path in archive.path(name).iterdir()}
    assert any(path.endswith(".part") for call, path in calls[:renamed] if call == "fsync")
    assert ("fsync", str(archive.folder)) in calls[renamed:]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_damaged_version_stays_until_its_replacement_is_in_place(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Where the file system cannot exchange two folders, the old one is moved aside."""
    name = archive.add(folder := toy(tmp_path / "made"))
    (archive.path(name) / "w1-d1.onnx").write_bytes(b"damaged")
    if not exchange:
        monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    removed: list[bool] = []
    real = shutil.rmtree

    def remove(path: Path, **named: bool) -> None:
        removed.append(release_reader.read(archive.path(name)).run == "spring")
        real(path, **named)

    monkeypatch.setattr(shutil, "rmtree", remove)
    calls = record_disk_calls(monkeypatch)
    archive.add(folder)
    assert removed
    assert all(removed), "nothing is removed before the new version is there"
    assert (("rename", str(archive.path(name))) in calls) is not exchange
    assert calls[-1] == ("fsync", str(archive.folder))
    assert [path.name for path in archive.folder.iterdir()] == [name]


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
        history = release(
            history, Item(describe_version(archive.path(name), "spring", {})), f"t{i}"
        )
    archive.write(history)
    assert archive.read() == history
    archive.prune(history)
    assert {path.name for path in archive.folder.iterdir()} == {
        "history.json",
        history.stable,
        history.previous,
    }


def test_a_flipped_bit_of_the_history_is_found_or_changes_nothing(
    archive: Archive, tmp_path: Path
) -> None:
    name = archive.add(toy(tmp_path / "made"))
    history = release(
        History("spring"),
        Item(describe_version(archive.path(name), "spring", {"pi": "w1-d1"})),
        "t",
    )
    archive.write(history)
    path = archive.folder / "history.json"
    written, found = path.read_bytes(), 0
    for place in range(len(written)):
        damaged = bytearray(written)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            assert archive.read() == history, place
        except StoreError:
            found += 1
    assert found > len(written) / 2, "the others are white space"


def test_a_history_of_version_0_1_0_has_no_digest(archive: Archive) -> None:
    path = archive.folder / "history.json"
    path.write_text('{"run": "spring", "agents": ["pi"], "format": 1}')
    assert archive.read() == History("spring", agents=("pi",))
    archive.write(archive.read())
    assert archive.read() == History("spring", agents=("pi",))
    path.write_text(path.read_text().replace('"digest"', '"digesT"'))
    with pytest.raises(StoreError, match="is damaged: its digest"):
        archive.read()


def test_a_version_with_another_manifest_is_named(archive: Archive, tmp_path: Path) -> None:
    name = archive.add(toy(tmp_path / "made"))
    assert archive.check(name) == archive.path(name)
    manifest = archive.path(name) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"7", b"6"))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged: expected a sha256 of"):
        archive.check(name)


def seal(history: History) -> str:
    """Return the text of a history with its digest."""
    return msgspec.json.encode(replace(history, digest=compute_digest(history))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"run": "spring", "stable": 1}',
        seal(History("autumn")),
        seal(History("spring", stable="aaaaaaaaaaaa")),
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
