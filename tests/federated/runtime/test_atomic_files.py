"""Files are written atomically."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from federated.runtime import atomic_files
from tests.support.disk_calls import record_disk_calls

ROOT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced_without_temporary_files(tmp_path):
    atomic_files.write(tmp_path / "a", b"first")
    atomic_files.write(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert names(tmp_path) == ["a"]


def test_a_failing_disk_keeps_the_old_content(tmp_path, monkeypatch):
    """The file system reports an error, as a full disk or a worn card does."""
    atomic_files.write(tmp_path / "a", b"first")
    with monkeypatch.context() as patch:
        patch.setattr(
            os,
            "fsync",
            lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        with pytest.raises(OSError, match="No space left"):
            atomic_files.write(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("before", [b"", b"first"])
def test_a_limit_on_the_size_of_files_keeps_the_old_content(tmp_path, before):
    """The system refuses in the middle of the content."""
    path = tmp_path / "a"
    if before:
        path.write_bytes(before)
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from federated.runtime import atomic_files as disk\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: disk.write(Path(sys.argv[1]), bytes(10_000))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("File too large\n", "")
    assert names(tmp_path) == (["a"] if before else [])
    assert not before or path.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "words"), [("none/a", "No such file"), ("folder", "Is a directory")]
)
def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path, target, words):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=words):
        atomic_files.write(tmp_path / target, b"x")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == []


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_files.write(tmp_path / "a", b"x")
    assert names(tmp_path) == []


def test_many_writers_of_one_path_never_mix(tmp_path):
    path, wrong, ended = tmp_path / "a", list[bytes](), threading.Event()
    atomic_files.write(path, bytes(100_000))

    def look() -> None:
        while not ended.is_set():
            found = path.read_bytes()
            if len(found) != 100_000 or len(set(found)) != 1:
                wrong.append(found[:20])

    def put(number: int) -> None:
        for _ in range(20):
            atomic_files.write(path, bytes([number]) * 100_000)

    looker, writers = (
        threading.Thread(target=look),
        [threading.Thread(target=put, args=(number,)) for number in range(1, 4)],
    )
    for thread in (looker, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    looker.join()
    assert not wrong
    assert names(tmp_path) == ["a"]


def forever(path: Path) -> None:
    number = 0
    while True:
        number = number % 250 + 1
        atomic_files.write(path, bytes([number]) * 1_000_000)


def test_a_kill_at_any_time_leaves_a_complete_file(tmp_path):
    path, context = tmp_path / "a", multiprocessing.get_context("spawn")
    process = context.Process(target=forever, args=(path,))
    process.start()
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.0137)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found = path.read_bytes()
    assert len(found) == 1_000_000
    assert len(set(found)) == 1


def test_files_are_moved_over_older_ones_with_the_last_one_after_all_others(tmp_path, monkeypatch):
    new, target = tmp_path / "new", tmp_path / "target"
    for folder, content in ((new, b"new"), (target, b"old")):
        folder.mkdir()
        for name in ("a", "last", "z"):
            atomic_files.write(folder / name, content)
    atomic_files.write(target / "notes", b"mine")
    calls = record_disk_calls(monkeypatch)
    atomic_files.move_files(new, target, last="last")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        **dict.fromkeys(("a", "last", "z"), b"new"),
        "notes": b"mine",
    }
    order = [(call, Path(path).relative_to(tmp_path)) for call, path in calls]
    assert {path.name for call, path in order[:3]} == {"a", "last", "z"}
    assert order[3:] == [
        ("replace", Path("target/a")),
        ("replace", Path("target/z")),
        ("fsync", Path("target")),
        ("replace", Path("target/last")),
        ("fsync", Path("target")),
        ("fsync", Path()),
    ]
