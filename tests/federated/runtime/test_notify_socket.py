"""Messages to a service manager over a real datagram socket."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from federated.runtime.service_manager import NotifySocket

ABSTRACT = pytest.param(
    "abstract",
    marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets"),
)


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.settimeout(5)
        yield made


@pytest.mark.parametrize("kind", ["path", ABSTRACT])
def test_a_manager_receives_the_state(kind: str, manager: socket.socket, tmp_path: Path) -> None:
    if kind == "path":
        address = str(tmp_path / "notify")
        manager.bind(address)
    else:
        address = f"@espalier-test-{os.getpid()}"
        manager.bind("\0" + address[1:])
    with closing(NotifySocket(address)) as notify:
        notify.send("READY=1\nSTATUS=größer")
    assert manager.recv(1000).decode() == "READY=1\nSTATUS=größer"


def test_a_manager_that_restarts_receives_later_states(
    manager: socket.socket, tmp_path: Path
) -> None:
    path = tmp_path / "notify"
    with closing(NotifySocket(str(path))) as notify:
        notify.send("READY=1")  # no process listens yet
        manager.bind(str(path))
        notify.send("WATCHDOG=1")
    assert manager.recv(1000) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["vsock:2:1234", "/nowhere/notify", "/" + "x" * 200])
def test_an_address_that_cannot_be_reached_is_ignored(address: str) -> None:
    with closing(NotifySocket(address)) as notify:
        notify.send("READY=1")


def test_a_closed_socket_sends_nothing(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    notify = NotifySocket(str(tmp_path / "notify"))
    notify.close()
    notify.send("READY=1")
    with pytest.raises(BlockingIOError):
        manager.recv(1000)
