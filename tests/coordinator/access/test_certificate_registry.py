"""The registry of devices, which several processes open at the same time."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.access.certificate_registry import REGISTRY, Certificate, Registry

ADD = """
from contextlib import closing
from pathlib import Path
from coordinator.access.certificate_registry import Registry
with closing(Registry(Path({path!r}))) as registry, registry.transaction():
    registry.set_groups({name!r}, ["eu"])
"""
AT_ONCE = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from coordinator.access.certificate_registry import Registry
path, start = Path({path!r}), time.time() + 0.3
children = []
for number in range(4):
    if not (pid := os.fork()):
        def add(thread):
            time.sleep(max(0, start - time.time()))
            registry = Registry(path)
            with registry.transaction():
                registry.set_groups(f"pi-{{number}}-{{thread}}", ["eu"])
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(add, range(2)))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""


def add(path: Path, name: str) -> None:
    """Let another process open the registry, and add a device."""
    subprocess.run([sys.executable, "-c", ADD.format(path=str(path), name=name)], check=True)


def read_journal_mode(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("pragma journal_mode").fetchone()[0])


def test_two_create_one_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is faster."""
    path, create = tmp_path / REGISTRY, os.open

    def create_later(*given: Any) -> int:
        monkeypatch.undo()
        add(path, "pi")
        return create(*given)

    monkeypatch.setattr(os, "open", create_later)
    with closing(Registry(path)) as slower:
        add(path, "pad")
        assert sorted(slower.list_groups()) == ["pad", "pi"]
    assert [file.name for file in tmp_path.iterdir()] == [REGISTRY]


def test_several_create_one_registry_at_once(tmp_path: Path) -> None:
    """Processes, of which each has two threads."""
    path = tmp_path / REGISTRY
    made = subprocess.run([sys.executable, "-c", AT_ONCE.format(path=str(path))], check=False)
    assert made.returncode == 0
    with closing(Registry(path)) as registry:
        assert len(registry.list_groups()) == 2 * 4
    assert read_journal_mode(path) == "wal"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_registry_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them, such as FAT."""

    def fail(*_given: Any, **_more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    with closing(Registry(tmp_path / REGISTRY)) as registry:
        assert registry.list_groups() == {}


def test_a_file_that_a_crash_left_empty_becomes_a_registry(tmp_path: Path) -> None:
    path = tmp_path / REGISTRY
    path.touch()
    add(path, "pi")
    with closing(Registry(path)) as registry:
        assert registry.find_groups("pi") == ("eu",)
    assert read_journal_mode(path) == "wal"


def test_each_connection_sees_what_another_process_writes(tmp_path: Path) -> None:
    """Also if this process opens the registry a second time, and closes it or not."""
    path = tmp_path / REGISTRY
    with closing(Registry(path)) as first:
        assert path.stat().st_mode & 0o777 == 0o600
        with closing(Registry(path)) as second:
            add(path, "pi")
            assert second.find_groups("pi") == first.find_groups("pi") == ("eu",)
        add(path, "pad")
        with closing(Registry(path)) as second:
            assert second.find_groups("pad") == first.find_groups("pad") == ("eu",)
        with first.transaction():
            first.set_groups("phone", ["us"])
    with closing(Registry(path)) as last:
        assert last.list_groups() == {"pad": ("eu",), "phone": ("us",), "pi": ("eu",)}


def test_a_registry_of_version_0_1_0_keeps_its_devices(tmp_path: Path) -> None:
    """Later versions only add tables."""
    path = tmp_path / REGISTRY
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("pragma journal_mode = wal")
        database.execute(
            "create table certificates (serial text primary key, name text not null, "
            "ends real not null, revoked real, pem text not null)"
        )
        database.execute("insert into certificates values ('1f', 'pi', 9e9, null, 'pem')")
    with closing(Registry(path)) as registry:
        with registry.transaction():
            registry.set_groups("pi", ["eu"])
        assert registry.list_valid("pi", 0.0) == [Certificate("1f", "pi", 9e9, None, "pem")]
        assert registry.find_groups("pi") == ("eu",)
