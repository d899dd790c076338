"""MQTT over WebSockets."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import embedded_broker_config
from coordinator.broker.local_addresses import find_free_port
from federated.errors import LinkError
from federated.wire import envelope, topics
from federated.wire.chunks import split
from federated.wire.link import CHUNK
from federated.wire.links.mqtt import MqttLink
from federated.wire.retained_blobs import Download, RetainedBlob, publish
from tests.support.brokers import is_listening, needs_mosquitto, open_websockets
from tests.support.certificates import certificate
from tests.support.links import listen, open_links, wait_for_delivery
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker


@needs_mosquitto
def test_messages_travel_over_websockets_with_tls(tmp_path: Path) -> None:
    pem = certificate(["127.0.0.1"], (-1, 30), tmp_path, "server")
    with (
        open_websockets(tmp_path, pem) as url,
        open_links(f"{url}?ca={pem}", "a", "b") as (a, b),
    ):
        assert str(a.address) == f"{url}/mqtt"
        listen(b, "x/+")
        a.publish("x/1", b"one" * 1000)
        assert wait_for_delivery(b, "x/1").payload == b"one" * 1000


@contextlib.contextmanager
def open_fast_websockets(folder: Path) -> Iterator[str]:
    """Run the embedded broker with WebSockets; yield their address. Those of mosquitto 2.0 take
    seconds for a chunk.
    """
    plain, web = (find_free_port("127.0.0.1", 0) for _ in range(2))
    command = embedded_broker_config.prepare("127.0.0.1", plain, folder, 1 << 20)
    with (folder / "embedded.toml").open("a") as settings:
        settings.write(
            f'[ws.1]\nname = "ws"\nlisten = "127.0.0.1:{web}"\nnext_connection_delay_ms = 1\n'
            "[ws.1.connections]\nconnection_timeout_ms = 60000\nmax_payload_size = 1048576\n"
            "max_inflight_count = 100\ndynamic_filters = true\n"
        )
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        assert eventually(lambda: is_listening(f"127.0.0.1:{web}"), 60)
        yield f"ws://127.0.0.1:{web}"
    finally:
        server.terminate()
        server.wait()


def test_weights_are_downloaded_over_websockets(tmp_path: Path) -> None:
    data = bytes(range(256)) * (8 << 10)
    manifest, base = split(data, CHUNK, "weights"), topics.model("r", "0", "w0.5-d1")
    with open_fast_websockets(tmp_path) as url, open_links(url, "a", "b") as (a, b):
        publish(a, base, manifest, memoryview(data))
        assert a.flush(60)
        blob = RetainedBlob(base, manifest.sha256, manifest.size)
        download = Download(b, blob, tmp_path / "weights", time.monotonic(), sync=False)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = b.receive(1)
            if found is not None and download.take(envelope.decode(found.payload), 0.0):
                break
    assert (tmp_path / "weights").read_bytes() == data


# the library leaves the socket to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("", r"closes the connection .* without WebSockets use mqtt://"),
        ("200 OK", r"no WebSockets at /here \(200 OK\); check port and path"),
        ("403 Forbidden", r"\(403 Forbidden\); check the path, and let its operator allow"),
        ("101 Switching Protocols", r"WebSockets at /here, but its answer is invalid; try again"),
        ("101 Here\r\nSec-WebSocket-Accept:x", r"WebSockets at /here, but its answer is invalid"),
        ("404 \x1b[1mGone", r"\(404 \?\[1mGone\); check port"),
        ("404 Not Found", r"\(404 Not Found\); check port and path \(most brokers use /mqtt\)"),
        ("502 Bad Gateway", r"\(502 Bad Gateway\); the web server does not reach the broker"),
    ],
)
def test_a_server_without_websockets_is_explained(status: str, words: str) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n" if status else ""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):  # the library tells nothing of the answer, so the link asks again
                client, _ = listener.accept()
                with client:
                    client.recv(1000)
                    client.sendall(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(LinkError, match=words):
            MqttLink(f"ws://127.0.0.1:{listener.getsockname()[1]}/here", "a", timeout=3.0)
        thread.join()


@needs_mosquitto
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("port", "scheme", "words"),
    [
        ("mqtt", "ws", r"for a port without WebSockets use mqtt://"),
        ("mqtt", "wss", r"does not use TLS"),
        ("ws", "mqtt", r"no MQTT broker answers; .* ws:// or wss:// for WebSockets"),
        ("ws", "wss", r"does not use TLS: use ws://"),
        ("wss", "ws", r"for a port with TLS wss://"),
        ("wss", "mqtts", r"no MQTT broker answers; .* wss:// for WebSockets"),
    ],
)
def test_the_scheme_of_another_port_is_explained(
    port: str, scheme: str, words: str, tmp_path: Path
) -> None:
    pem = certificate(["127.0.0.1"], (-1, 30), tmp_path, "server")
    secure = port == "wss"
    with open_websockets(tmp_path, pem if secure else None) as url:
        if port == "mqtt":
            found = re.search(r"listener (\d+)", (tmp_path / "websockets.conf").read_text())
            assert found is not None
            url = f"mqtt://127.0.0.1:{found[1]}"
        place = url.partition("://")[2]
        files = f"?ca={pem}" if scheme in ("mqtts", "wss") else ""
        with pytest.raises(LinkError, match=words):
            MqttLink(f"{scheme}://{place}{files}", "a", timeout=5.0)
