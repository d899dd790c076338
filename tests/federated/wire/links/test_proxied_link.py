"""Links through a proxy that resolves the broker's name."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from federated.errors import LinkError
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import needs_mosquitto, open_websockets, read_port
from tests.support.links import listen, open_links, wait_for_delivery
from tests.support.proxy import Proxy

pytest.importorskip("socks", reason="the extra proxy is not installed")
pytestmark = pytest.mark.broker
NAME = "broker.invalid"  # only the proxy knows it


class ConnectProxy(Proxy):
    """An HTTP proxy, through which every name leads to the same broker. asked: requests."""

    def __init__(self, port: int, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> None:
        self.asked, self._answer = list[bytes](), answer
        super().__init__(port)

    def _pump(self, a: socket.socket, b: socket.socket, slowly: bool) -> None:
        if slowly:  # from the client
            request = b""
            while not request.endswith(b"\r\n\r\n") and (more := a.recv(1)):
                request += more
            self.asked.append(request.partition(b"\r\n")[0])
            a.sendall(self._answer)
        super()._pump(a, b, slowly)


@contextlib.contextmanager
def open_broker(scheme: str, folder: Path) -> Iterator[int]:
    """Run a broker; yield its port."""
    if scheme == "ws":
        with open_websockets(folder) as url:
            yield int(url.rpartition(":")[2])
    else:
        with brokers.start(port=0, kind="embedded", directory=folder) as broker:
            yield read_port(broker)


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [("mqtt", "mqtt_proxy"), pytest.param("ws", "http_proxy", marks=needs_mosquitto)],
)
def test_a_link_goes_through_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str
) -> None:
    with open_broker(scheme, tmp_path) as port, contextlib.closing(ConnectProxy(port)) as proxy:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        with open_links(f"{scheme}://{NAME}:1883", "a", "b") as (a, b):
            listen(b, "x")
            a.publish("x", b"1")
            assert wait_for_delivery(b, "x").payload == b"1"
    assert {line.split()[1] for line in proxy.asked} == {f"{NAME}:1883".encode()}


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.closing(
            ConnectProxy(listener.getsockname()[1], b"HTTP/1.1 403 Forbidden\r\n\r\n")
        ) as proxy,
    ):
        monkeypatch.setenv("mqtt_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(LinkError, match=rf"proxy 127.0.0.1:{proxy.port} \(mqtt_proxy\).*403"):
            MqttLink(f"{NAME}:1883", "a", timeout=5.0)
