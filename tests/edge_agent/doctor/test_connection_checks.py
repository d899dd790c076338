"""Problems with names, ports and certificates on the way to a broker."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.doctor import connection_checks
from edge_agent.doctor.check_result import Check, format_check
from tests.support.certificates import certificate
from tests.support.doctor_checks import check_broker, states


def test_a_name_that_does_not_resolve_is_reported_and_no_other_check_runs() -> None:
    found = check_broker("nowhere.invalid")
    assert states(found) == {"dns": "fail"}
    assert found["dns"].exit == 5
    assert "IP address" in found["dns"].remedy


def test_a_closed_port_is_reported() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = check_broker(f"localhost:{probe.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "fail"}
    assert "start a broker" in found["tcp"].remedy


def test_a_server_that_is_no_broker_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = check_broker(f"127.0.0.1:{server.getsockname()[1]}")
    assert states(found) == {"dns": "ok", "tcp": "ok", "tls": "ok", "credentials": "fail"}
    assert "no MQTT broker answers" in format_check(found["credentials"])


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
        check = connection_checks.check_tls(
            connection_checks.parse_mqtt_address(f"mqtts://127.0.0.1:{port}?ca={ca}")
        )
    assert check.state == state, format_check(check)
    assert words in format_check(check)
    if "expired" in words or "valid" in words:
        assert "this device's clock says" in check.remedy


def test_the_devices_certificate_is_checked(tmp_path: Path) -> None:
    def seen(path: Path, name: str) -> Check:
        return connection_checks.check_certificate(path, name)

    mine = certificate(["x"], (-1, 60.5), tmp_path, "pi")
    assert seen(mine, "pi") == Check("certificate", "ok", "of pi, 60 days left")
    assert (seen(mine, "pa").state, seen(mine, "pa").exit) == ("fail", 3)
    assert (
        "enrol this device again"
        in seen(certificate(["x"], (-9, -1), tmp_path, "old"), "old").remedy
    )
    (tmp_path / "none.pem").write_text("nothing")
    assert "contains no certificate" in seen(tmp_path / "none.pem", "pi").found
