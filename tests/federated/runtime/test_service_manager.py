"""Signs of life for a service manager over a real datagram socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federated.runtime.service_manager import ServiceManager, read_watchdog, to_line


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "8000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        yield ear


def all_of(ear: socket.socket) -> list[str]:
    ear.setblocking(False)
    said = []
    try:
        while True:
            said.append(ear.recv(1000).decode())
    except BlockingIOError:
        return said


def test_a_manager_receives_ready_watchdog_status_and_stopping(
    heard: socket.socket,
) -> None:
    with ServiceManager() as manager:
        manager.ready("looking for a run")
    assert all_of(heard) == ["READY=1", "WATCHDOG=1", "STATUS=looking for a run", "STOPPING=1"]


def test_a_fast_loop_pings_four_times_per_timeout_and_sends_a_status_once(
    heard: socket.socket,
) -> None:
    now = [0.0]
    with ServiceManager(lambda: now[0]) as manager:
        for tenth in range(81):  # eight seconds: at 0, 2, 4, 6 and 8
            now[0] = tenth / 10
            manager.ping(lambda: "idle" if now[0] < 4 else "train")
    said = all_of(heard)
    assert said.count("WATCHDOG=1") == 5
    assert [word for word in said if word.startswith("STATUS")] == ["STATUS=idle", "STATUS=train"]


def test_child_processes_do_not_inherit_the_variables(heard: socket.socket) -> None:
    with ServiceManager():
        shown = subprocess.run(
            [sys.executable, "-c", "import os; print(*os.environ)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(shown.split())


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("30000000", "", 30.0),
        ("30000000", "1", 0.0),
        ("", "", 0.0),
        ("soon", "", 0.0),
        ("-5", "", 0.0),
    ],
)
def test_the_watchdog_timeout_counts_only_for_this_process(
    microseconds: str, pid: str, seconds: float
) -> None:
    assert read_watchdog(microseconds, pid) == seconds


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with ServiceManager() as manager:
        manager.ready("x")
        manager.ping(lambda: "y")


def test_a_manager_that_is_gone_is_ignored(heard: socket.socket) -> None:
    with ServiceManager() as manager:
        heard.close()
        manager.ready("still here")


def test_a_status_is_one_line() -> None:
    assert to_line("round 3 of\n 5: größer") == "round 3 of 5: größer"
    assert len(to_line("x" * 1000)) == 200


def test_a_health_check_s_file_is_touched_while_the_loop_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now = tmp_path / "alive", [0.0]
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("ESPALIER_ALIVE", str(file))
    with ServiceManager(lambda: now[0]) as manager:
        manager.ready()
        os.utime(file, (0, 0))
        now[0] = 9.9
        manager.ping(lambda: "")
        assert file.stat().st_mtime == 0
        now[0] = 10.0
        manager.ping(lambda: "")
        assert time.time() - file.stat().st_mtime < 60


def test_a_health_check_s_file_that_cannot_be_written_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_ALIVE", str(tmp_path / "nowhere" / "alive"))
    with ServiceManager() as manager:
        manager.ping(lambda: "x")
