"""Problems with names, ports and certificates on the way to a broker."""

from __future__ import annotations

import socket
from pathlib import Path

from edge_agent.doctor import connection_checks
from federated.wire.checks.check_result import Check, format_check
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
