"""A RabbitMQ with its MQTT plugin, on loopback and with its own data."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from tests.support.links import connect

__all__ = ["needs_rabbitmq", "open_rabbitmq"]

# Debian's command in PATH would switch to another user
SERVERS = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
SERVER = str(SERVERS[-1]) if SERVERS else shutil.which("rabbitmq-server")
needs_rabbitmq = pytest.mark.skipif(SERVER is None, reason="rabbitmq-server is not installed")


@contextlib.contextmanager
def open_rabbitmq(folder: Path) -> Iterator[str]:
    """Run a RabbitMQ until the end of the context; yield the address of its MQTT."""
    amqp, mqtt, nodes, names = (find_free_port("127.0.0.1", 0) for _ in range(4))
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\nmqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}\n"
        "mqtt.allow_anonymous = true\n"
    )
    environment = {
        **os.environ,
        "HOME": str(folder),  # of the cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(nodes),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_NODENAME": f"espalier-{os.getpid()}@localhost",
    }
    assert SERVER is not None
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [SERVER], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        address = f"127.0.0.1:{mqtt}"
        connect(address, "waiting", 240.0).close()
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        subprocess.run(["epmd", "-kill"], env=environment, check=False, capture_output=True)
