"""Proxies that the environment names."""

from __future__ import annotations

import socket
import threading

import pytest

from federated.errors import ConfigError
from federated.system.proxies import Proxy, ProxyError, find_proxy, open_connection

NAMES = ("mqtt_proxy", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("scheme", "port", "variable"),
    [
        ("mqtt", 1883, "mqtt_proxy"),
        ("mqtts", 8883, "mqtt_proxy"),
        ("mqtts", 443, "mqtt_proxy"),
        ("mqtts", 443, "https_proxy"),
        ("ws", 80, "http_proxy"),
        ("wss", 443, "https_proxy"),
        ("https", 8884, "https_proxy"),
        ("mqtts", 8883, "all_proxy"),
        ("wss", 443, "all_proxy"),
    ],
)
def test_each_scheme_has_its_variable(
    monkeypatch: pytest.MonkeyPatch, scheme: str, port: int, variable: str
) -> None:
    monkeypatch.setenv(variable.upper(), "http://me:p%40ss@proxy:3128")
    proxy = find_proxy(scheme, "broker", port)
    assert proxy == Proxy("HTTP", "proxy", 3128, "me", "p@ss", variable)
    assert "p@ss" not in f"{proxy} {proxy!r}"


def test_mqtt_on_other_ports_does_not_use_the_proxy_for_web_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert find_proxy("mqtt", "broker", 1883) is None
    assert find_proxy("mqtts", "broker", 8883) is None


def test_the_variable_of_the_scheme_precedes_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://other")
    monkeypatch.setenv("mqtt_proxy", "proxy:1")
    assert find_proxy("mqtt", "broker", 1883) == Proxy("HTTP", "proxy", 1, None, None, "mqtt_proxy")
    assert find_proxy("wss", "broker", 443) == Proxy(
        "SOCKS5", "other", None, None, None, "all_proxy"
    )


def test_this_machine_and_the_hosts_in_no_proxy_are_reached_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("all_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near.example,far.example:443")
    for host, port in (
        ("localhost", 1883),
        ("127.0.0.2", 1883),
        ("::1", 1883),
        ("a.near.example", 1883),
        ("far.example", 443),
    ):
        assert find_proxy("mqtt", host, port) is None
    assert find_proxy("mqtt", "far.example", 1883) is not None


@pytest.mark.parametrize("value", ["https://proxy", "http://", "http://proxy:x"])
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("https_proxy", value.replace("://", "://me:secret@"))
    with pytest.raises(ConfigError, match="https_proxy: expected http://") as caught:
        find_proxy("wss", "broker", 443)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 \x1b[1mNo", r" 407 \?\[1mNo; check user and password in all_proxy$"),
        (b"HTTP/1.1 407", r" 407; check user and password in all_proxy$"),
        (b"\x1b]0;x\x07", r"^\?\]0;x\?; check that the proxy reaches broker.invalid:1883"),
        (b"HTTP/1.1 403 " + 60_000 * b"x", r"^.{1,1000}\.\.\.; check that the proxy reaches"),
    ],
)
def test_what_a_proxy_answers_is_shown_safe_and_short(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(answer + b"\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("all_proxy", f"http://me:p%40ss@127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ProxyError, match=words) as caught:
            open_connection("mqtt", "broker.invalid", 1883, 5.0)
        thread.join()
    assert "p@ss" not in str(caught.value)
