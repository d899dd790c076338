"""What stands in the way to a broker is found where it is: names, ports, certificates, clocks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.doctor import connection_checks
from edge_agent.doctor.check import Check, text
from tests.support.certificates import certificate
from tests.support.doctor import states, tried


def test_a_name_that_does_not_resolve_is_said_and_nothing_more_is_tried() -> None:
    found = tried("nowhere.invalid")
    assert states(found) == {"dns": "fail"}
    assert found["dns"].exit == 5
    assert "give an address" in found["dns"].remedy


def test_a_port_where_nobody_listens_is_said() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = tried(f"localhost:{probe.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "fail"}
    assert "start a broker" in found["tcp"].remedy


def test_a_port_where_something_else_listens_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = tried(f"127.0.0.1:{server.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "ok", "tls": "ok", "credentials": "fail"}
    assert "does not answer as an MQTT broker" in text(found["credentials"])


@contextlib.contextmanager
def speaking_tls(pem: Path) -> Iterator[int]:
    """A server that only greets by TLS; its port."""
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
        (["127.0.0.1"], (-1, 30), False, "fail", "give its authority"),
        (["127.0.0.1"], (-1, 3), True, "warn", "3 days left"),
        (["127.0.0.1"], (-1, 30.5), True, "ok", "30 days left"),
    ],
)
def test_a_brokers_certificate_is_looked_at(
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
        check = connection_checks.encrypted(
            connection_checks.parse_address(f"mqtts://127.0.0.1:{port}?ca={ca}")
        )
    assert check.state == state, text(check)
    assert words in text(check)
    if "expired" in words or "valid" in words:
        assert "this device's clock says" in check.remedy


def test_an_own_certificate_that_ended_or_is_of_another_is_said(tmp_path: Path) -> None:
    def seen(path: Path, name: str) -> Check:
        return connection_checks.own_certificate(
            connection_checks.parse_address(f"mqtts://h?cert={path}"), name
        )

    mine = certificate(["x"], (-1, 60.5), tmp_path, "pi")
    assert seen(mine, "pi") == Check("certificate", "ok", "of pi, 60 days left")
    assert (seen(mine, "pa").state, seen(mine, "pa").exit) == ("fail", 3)
    assert (
        "enrol this device anew"
        in seen(certificate(["x"], (-9, -1), tmp_path, "old"), "old").remedy
    )
    (tmp_path / "none.pem").write_text("nothing")
    assert "holds no certificate" in seen(tmp_path / "none.pem", "pi").found
