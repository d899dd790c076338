"""Parameters and helpers for tests with real brokers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coordinator.broker.broker_profiles import Profile
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.local_broker import Broker
from coordinator.broker.mosquitto_config import find_mosquitto
from tests.support.broker_rates import RateProxy

__all__ = [
    "BOTH",
    "Limited",
    "is_listening",
    "needs_mosquitto",
    "open_limited",
    "open_websockets",
    "read_port",
    "run_mosquitto",
]

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
    web, plain = (find_free_port("127.0.0.1", 0) for _ in range(2))
    lines = [
        "user root",  # else it could not read the certificate
        f"listener {plain} 127.0.0.1",  # without one it serves no WebSockets
        f"listener {web} 127.0.0.1",
        "protocol websockets",
        *([] if pem is None else [f"certfile {pem}", f"keyfile {pem}"]),
    ]
    with run_mosquitto(folder / "websockets.conf", lines, web):
        yield f"{'ws' if pem is None else 'wss'}://127.0.0.1:{web}"


class Limited(NamedTuple):
    """A broker with the limits of another one.

    address: of the broker.
    rates: what enforces its rates; None if the other broker has none.
    """

    address: str
    rates: RateProxy | None


@contextlib.contextmanager
def open_limited(folder: Path, profile: Profile) -> Iterator[Limited]:
    """Run a mosquitto with the limits of another broker, and a proxy with its rates. Its longest
    topics have at most 20 levels.
    """
    slashes = min(20, profile.slashes or 20)
    patterns = ["/".join(["fl", "v1", *"+" * levels]) for levels in range(1, slashes)]
    acl = folder / "limited.acl"
    acl.write_text("".join(f"topic readwrite {one}\n" for one in patterns))
    port = find_free_port("127.0.0.1", 0)
    lines = [
        f"listener {port} 127.0.0.1",
        "user root",
        f"acl_file {acl}",
        *([] if profile.payload is None else [f"max_packet_size {profile.payload}"]),
        *([] if profile.queue is None else [f"max_queued_messages {profile.queue}"]),
    ]
    with run_mosquitto(folder / "limited.conf", lines, port):
        if profile.messages is None:
            yield Limited(f"127.0.0.1:{port}", None)
            return
        with contextlib.closing(RateProxy(port, profile)) as rates:
            yield Limited(f"127.0.0.1:{rates.port}", rates)


@contextlib.contextmanager
def run_mosquitto(file: Path, lines: list[str], port: int) -> Iterator[None]:
    """Run a mosquitto with these lines as its configuration until the end of the context."""
    program = find_mosquitto()
    assert program is not None
    file.write_text("\n".join(["allow_anonymous true", *lines]) + "\n")
    server = subprocess.Popen([program, "-c", str(file)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while not is_listening(f"127.0.0.1:{port}"):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()
