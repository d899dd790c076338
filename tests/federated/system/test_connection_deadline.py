"""Attempts to connect end in time, although a proxy or a server sends a byte now and then."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.access.certificate_authority import Authority
from edge_agent.access import enrolment
from federated.errors import LinkError
from federated.system.connection_deadline import ConnectionDeadline
from federated.system.proxies import ProxyError, open_connection
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.dripping_server import INTERVAL, drip

TIMEOUT = 3 * INTERVAL
HTTP = b"HTTP/1.1 200 OK\r\nX: "
WEBSOCKETS = b"HTTP/1.1 101 Switching Protocols\r\nX: "
SOCKS = b"\x05\x00\x05\x00\x00\x03\xff"  # no password; connected to a name of 255 bytes
CONNACK = b"\x20\xff\xff\xff\x7f"  # of 256 MB


@pytest.fixture(autouse=True)
def _is_short() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(("scheme", "answer"), [("http", HTTP), ("socks5", SOCKS)])
def test_a_slow_proxy_is_given_up(
    monkeypatch: pytest.MonkeyPatch, scheme: str, answer: bytes
) -> None:
    with drip(answer) as port:
        monkeypatch.setenv("mqtt_proxy", f"{scheme}://127.0.0.1:{port}")
        with pytest.raises(ProxyError, match="timed out; check mqtt_proxy"):
            open_connection("mqtt", "broker.invalid", 1883, TIMEOUT)


@pytest.mark.parametrize(
    ("scheme", "answer", "words"),
    [("ws", WEBSOCKETS, "no answer within 1 s"), ("mqtt", CONNACK, "no MQTT broker answers")],
)
def test_a_slow_broker_is_given_up(scheme: str, answer: bytes, words: str) -> None:
    with drip(answer) as port, pytest.raises(LinkError, match=words):
        MqttLink(f"{scheme}://127.0.0.1:{port}", "a", timeout=TIMEOUT)


def test_a_slow_enrolment_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "TIMEOUT", TIMEOUT)
    authority = Authority(tmp_path / "pki")
    authority.close()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.server)
    client = ssl.create_default_context(cafile=str(authority.ca))
    with drip(HTTP, server) as port, pytest.raises(LinkError, match=r"cannot enrol at .*timed out"):
        enrolment.send_request(
            parse_mqtt_address(f"localhost:{port}"), client, "GET", "/authority", None
        )


def test_an_attempt_in_time_is_left_alone() -> None:
    with ConnectionDeadline(60.0), drip(HTTP) as port:
        open_connection("mqtt", "127.0.0.1", port, 5.0).close()
