"""What a client logs while a broker shows a certificate that the client does not trust."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.access.broker_files import write_broker_files
from coordinator.access.certificate_authority import Authority
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import member, shipped
from tests.support.links import connect
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, needs_mosquitto]


def test_a_client_logs_that_a_restarted_broker_has_a_certificate_of_another_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = Authority(tmp_path / "pki"), Authority(tmp_path / "other")
    with shipped("tls.conf", authority, tmp_path) as tls_broker:
        link = connect(tls_broker.address(member(authority, "a", tmp_path)), "r-a")
        write_broker_files(other, tls_broker.files)
        tls_broker.restart()

        def warned() -> bool:
            link.receive(0.05)
            return "cannot reconnect to the broker" in caplog.text

        with caplog.at_level(logging.WARNING):
            eventually(warned, 30)
        link.close()
    assert "its certificate is not trusted" in caplog.text
    authority.close()
    other.close()
