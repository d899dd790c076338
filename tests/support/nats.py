"""A NATS server with JetStream and its MQTT, on loopback and with its own data."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from tests.support.links import connect

__all__ = ["needs_nats", "open_nats"]

SERVER = shutil.which("nats-server")
needs_nats = pytest.mark.skipif(SERVER is None, reason="nats-server is not installed")


@contextlib.contextmanager
def open_nats(folder: Path) -> Iterator[str]:
    """Run a NATS server until the end of the context; yield the address of its MQTT."""
    clients, mqtt = (find_free_port("127.0.0.1", 0) for _ in range(2))
    settings = {
        "server_name": "espalier",
        "listen": f"127.0.0.1:{clients}",
        "jetstream": {"store_dir": str(folder / "data")},
        "mqtt": {"listen": f"127.0.0.1:{mqtt}"},
    }
    (folder / "nats.conf").write_text(json.dumps(settings))
    assert SERVER is not None
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([SERVER, "-c", str(folder / "nats.conf")], stdout=log, stderr=log)
    try:
        address = f"127.0.0.1:{mqtt}"
        connect(address, "waiting", 60.0).close()
        yield address
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        server.kill()
        server.wait()
