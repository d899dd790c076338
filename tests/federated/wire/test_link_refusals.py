"""Errors of a link: no broker, a rejected client, and a name that another client takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.local_broker import Broker
from federated.errors import ConfigError, LinkError
from federated.wire import topics
from federated.wire.link import LINK_DOWN
from federated.wire.links import disconnection_diagnosis
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import is_listening, needs_mosquitto
from tests.support.links import open_links, wait_for_delivery
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker


def test_a_second_client_of_the_name_ends_the_first_with_a_reason(
    mosquitto: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disconnection_diagnosis, "SHORTS", 1)
    first = MqttLink(mosquitto.address, "a")
    second = MqttLink(mosquitto.address, "a")
    try:
        with pytest.raises(LinkError, match=r"another client .*'a'"):
            wait_for_delivery(first, "never", 10)
    finally:
        first.close()
        second.close()


def test_after_one_of_two_namesakes_ends_the_other_stays_connected(
    mosquitto: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a reason from the broker, two namesakes disconnect each other in turn. Once one has
    ended, the other stays connected.
    """
    monkeypatch.setattr(disconnection_diagnosis, "SHORTS", 2)
    pair = [MqttLink(mosquitto.address, "a") for _ in range(2)]
    try:
        ended: list[MqttLink] = []
        until = time.monotonic() + 30
        while not ended:
            assert time.monotonic() < until
            for link in pair:
                with contextlib.suppress(AssertionError):
                    try:
                        wait_for_delivery(link, "never", 0.1)
                    except LinkError:
                        ended.append(link)
        (other,) = set(pair) - set(ended)
        for nothing_of in ("what it heard before", LINK_DOWN):
            with pytest.raises(AssertionError, match="nothing came"):
                wait_for_delivery(other, nothing_of, 3.0 if nothing_of == LINK_DOWN else 0.2)
    finally:
        for link in pair:
            link.close()


@contextlib.contextmanager
def impostor(answer: bytes | None) -> Iterator[int]:
    """Listen as something other than a broker: silent forever (None), or hanging up after its
    answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    if answer is not None:
                        connection.recv(1000)
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in held:
            connection.close()


@pytest.mark.timed
@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_other_than_a_broker_is_an_error_in_time(answer: bytes | None) -> None:
    with impostor(answer) as port:
        start = time.monotonic()
        with pytest.raises(
            LinkError,
            match=rf"127.0.0.1:{port}: (the port is open|the connection was closed)",
        ):
            MqttLink(f"127.0.0.1:{port}", "a", timeout=3.0)
        assert time.monotonic() - start < 8


@pytest.mark.timed
def test_a_closed_port_is_an_error_at_once() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(LinkError, match="refused; start a broker"):
            MqttLink(f"127.0.0.1:{reserved.getsockname()[1]}", "a")
        assert time.monotonic() - start < 2


def test_a_name_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"the name 'nowhere.invalid' does not resolve"):
        MqttLink("nowhere.invalid", "a", timeout=5.0)


@needs_mosquitto
def test_wrong_and_missing_passwords_are_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:right\n")
    own = topics.probe("r", "me")  # an agent's name is its user
    with brokers.start(port=0, directory=tmp_path / "b", clients=tmp_path / "users") as broker:
        for login in ("", "me:wrong@", "you:right@"):
            with pytest.raises(
                LinkError, match=r"rejected this client: .*mqtt://user:password@host"
            ) as caught:
                MqttLink(f"mqtt://{login}{broker.address}", "a")
            assert "wrong" not in str(caught.value)
        with open_links(f"mqtt://me:right@{broker.address}", "a") as (link,):
            link.subscribe(own)
            link.publish(own, b"1")
            assert wait_for_delivery(link, own).payload == b"1"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    names = ["-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        *names,
        "-keyout",
        "key.pem",
        "-out",
        "ca.pem",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "ca.pem"


@needs_mosquitto
# the library leaves a refused TLS socket to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls_is_checked_against_the_given_authority(certificate: Path) -> None:
    folder = certificate.parent
    port = find_free_port("127.0.0.1", 0)
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        f"certfile {certificate}",
        f"keyfile {folder / 'key.pem'}",
    ]
    (folder / "m.conf").write_text(
        "\n".join([*lines, *(["user root"] if os.geteuid() == 0 else [])]) + "\n"
    )
    program = brokers.find_mosquitto()
    assert program is not None
    process = subprocess.Popen([program, "-c", str(folder / "m.conf")], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: is_listening(f"127.0.0.1:{port}"))
        with open_links(f"mqtts://127.0.0.1:{port}?ca={certificate}", "a") as (link,):
            link.subscribe("x")
            link.publish("x", bytes(300_000))
            assert len(wait_for_delivery(link, "x").payload) == 300_000
        with pytest.raises(LinkError, match=r"certificate is not trusted.*ca=FILE"):
            MqttLink(f"mqtts://127.0.0.1:{port}", "a")
        with pytest.raises(LinkError, match="cannot connect to the broker"):
            MqttLink(f"mqtt://127.0.0.1:{port}", "a", timeout=3.0)
        with pytest.raises(ConfigError, match="does not exist"):
            MqttLink(f"mqtts://127.0.0.1:{port}?ca={folder / 'none.pem'}", "a")
    finally:
        process.terminate()
        process.wait()
