"""Parameters and helpers for tests with real brokers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.local_broker import Broker
from coordinator.broker.mosquitto_config import find_mosquitto

__all__ = ["BOTH", "is_listening", "needs_mosquitto", "open_websockets", "read_port"]

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
BOTH = [pytest.param("mosquitto", marks=needs_mosquitto), "embedded"]


def read_port(broker: Broker) -> int:
    return int(broker.address.rsplit(":", 1)[1])


def is_listening(address: str) -> bool:
    """Return True if a process is_listening at HOST:PORT."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@contextlib.contextmanager
def open_websockets(folder: Path, pem: Path | None = None) -> Iterator[str]:
    """Run a mosquitto that serves WebSockets, with TLS given a certificate; yield its address."""
    program = find_mosquitto()
    assert program is not None
    web, plain = (find_free_port("127.0.0.1", 0) for _ in range(2))
    lines = [
        "allow_anonymous true",
        "user root",  # else it could not read the certificate
        f"listener {plain} 127.0.0.1",  # without one it serves no WebSockets
        f"listener {web} 127.0.0.1",
        "protocol websockets",
        *([] if pem is None else [f"certfile {pem}", f"keyfile {pem}"]),
    ]
    (folder / "websockets.conf").write_text("\n".join(lines) + "\n")
    server = subprocess.Popen(
        [program, "-c", str(folder / "websockets.conf")], stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while not is_listening(f"127.0.0.1:{web}"):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield f"{'ws' if pem is None else 'wss'}://127.0.0.1:{web}"
    finally:
        server.terminate()
        server.wait()
