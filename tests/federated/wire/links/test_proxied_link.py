"""Links through a proxy that resolves the broker's name."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from federated.errors import LinkError
from federated.wire.checks.check_result import format_check
from federated.wire.checks.network_checks import check_tcp
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.brokers import needs_mosquitto, open_websockets, read_port
from tests.support.links import listen, open_links, wait_for_delivery
from tests.support.proxy import ConnectProxy

pytestmark = pytest.mark.broker
NAME = "broker.invalid"  # only the proxy knows it


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
    with (
        open_broker(scheme, tmp_path) as port,
        contextlib.closing(ConnectProxy(port, user="me:p@ss")) as proxy,
    ):
        monkeypatch.setenv(variable, f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        with open_links(f"{scheme}://{NAME}:1883", "a", "b") as (a, b):
            listen(b, "x")
            a.publish("x", b"1")
            assert wait_for_delivery(b, "x").payload == b"1"
        count = len(proxy.asked)
        monkeypatch.setenv("no_proxy", f"{NAME}:1883")
        with pytest.raises(LinkError, match="does not resolve"):
            MqttLink(f"{scheme}://{NAME}:1883", "a", timeout=5.0)
    assert set(proxy.asked) == {f"{NAME}:1883"}
    assert count == len(proxy.asked) >= 2


def test_a_link_to_an_ipv6_address_goes_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_broker("mqtt", tmp_path) as port,
        contextlib.closing(ConnectProxy(port)) as proxy,
    ):
        monkeypatch.setenv("mqtt_proxy", f"http://127.0.0.1:{proxy.port}")
        with open_links("mqtt://[2001:db8::1]:1883", "a"):
            pass
    assert set(proxy.asked) == {"[2001:db8::1]:1883"}


def test_this_machine_is_reached_without_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("mqtt_proxy", "http://proxy.invalid:3128")
    with open_broker("mqtt", tmp_path) as port, open_links(f"127.0.0.1:{port}", "a"):
        pass


@pytest.mark.parametrize(
    ("user", "status", "words"),
    [
        ("", "403 Forbidden", f"403 Forbidden. check that the proxy reaches {NAME}:1883"),
        ("me:secret", "", "407 .* mqtt_proxy must name a user: http://USER:PASSWORD@"),
    ],
)
def test_a_proxy_that_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, user: str, status: str, words: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.closing(ConnectProxy(listener.getsockname()[1], user, status)) as proxy,
    ):
        monkeypatch.setenv("mqtt_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(
            LinkError,
            match=rf"through the HTTP proxy 127.0.0.1:{proxy.port} \(mqtt_proxy\): .*{words}",
        ):
            MqttLink(f"{NAME}:1883", "a", timeout=5.0)
        check = check_tcp(parse_mqtt_address(f"{NAME}:1883"))
    assert re.search(words, format_check(check))


def test_a_proxy_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("mqtt_proxy", f"http://127.0.0.1:{find_free_port('127.0.0.1', 0)}")
    with pytest.raises(LinkError, match=r"refused; check mqtt_proxy, or .* in no_proxy"):
        MqttLink(f"{NAME}:1883", "a", timeout=5.0)
