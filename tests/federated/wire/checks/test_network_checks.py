"""Checks of the way to a broker: its certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from federated.wire.checks.check_result import format_check
from federated.wire.checks.network_checks import check_tls
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.certificates import certificate


@contextlib.contextmanager
def speaking_tls(pem: Path) -> Iterator[int]:
    """Run a server that only performs TLS handshakes; yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(plain, server_side=True) as made,
                ):
                    made.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("names", "days", "trusted", "state", "words"),
    [
        (["127.0.0.1"], (-400, -1), True, "fail", "certificate has expired"),
        (["127.0.0.1"], (1, 30), True, "fail", "not yet valid"),
        (["broker.example"], (-1, 30), True, "fail", "is for broker.example"),
        (["127.0.0.1"], (-1, 30), False, "fail", "name its authority"),
        (["127.0.0.1"], (-1, 3), True, "warn", "3 days left"),
        (["127.0.0.1"], (-1, 30.5), True, "ok", "30 days left"),
    ],
)
def test_the_brokers_certificate_is_checked(
    names: list[str],
    days: tuple[float, float],
    trusted: bool,
    state: str,
    words: str,
    tmp_path: Path,
) -> None:
    pem = certificate(names, days, tmp_path, "server")
    ca = pem if trusted else certificate(["other"], (-1, 30), tmp_path, "other")
    with speaking_tls(pem) as port:
        check = check_tls(parse_mqtt_address(f"mqtts://127.0.0.1:{port}?ca={ca}"))
    assert check.state == state, format_check(check)
    assert words in format_check(check)
    if "expired" in words or "valid" in words:
        assert "this device's clock says" in check.remedy
