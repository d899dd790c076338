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


def add(path: Path, name: str) -> None:
    """Let another process open the registry, and add a device."""
    subprocess.run([sys.executable, "-c", ADD.format(path=str(path), name=name)], check=True)


def test_two_create_one_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is faster, and so is another thread of this one, which keeps its locks."""
    path, faster = tmp_path / REGISTRY, list[Registry]()
    create = os.open

    def create_later(*given: Any) -> int:
        monkeypatch.undo()
        add(path, "pi")
        faster.append(Registry(path))
        with faster[0].transaction():
            faster[0].set_groups("tv", ["eu"])
        return create(*given)

    monkeypatch.setattr(os, "open", create_later)
    with closing(Registry(path)) as slower, closing(faster[0]) as thread:
        for name, found in ("pad", ["pad", "pi", "tv"]), ("pc", ["pad", "pc", "pi", "tv"]):
            add(path, name)
            assert sorted(slower.list_groups()) == sorted(thread.list_groups()) == found
    assert [file.name for file in tmp_path.iterdir()] == [REGISTRY]


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
