"""A server uses a renewed certificate without a restart."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.access.certificate_authority import Authority
from coordinator.http_transfers.transfer_server import TransferServer
from coordinator.phones.phone_server_process import serve_phones
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Broker, Phones
from coordinator.web_certificate import ServedCertificate
from tests.support.phone_pages import needs_page
from tests.support.waiting import eventually

NAME = "phones.test"


def is_trusted(port: int, ca: Path) -> bool:
    """Return whether a client that trusts an authority accepts the server's certificate."""
    context = ssl.create_default_context(cafile=str(ca))
    with socket.create_connection(("127.0.0.1", port), 30) as plain:
        try:
            context.wrap_socket(plain, server_hostname=NAME).close()
        except ssl.SSLCertVerificationError:
            return False
    return True


def test_a_renewed_certificate_is_served_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    with closing(Authority(tmp_path / "pki")) as authority:
        served = ServedCertificate(str(authority.server), str(authority.server), ("", ""))
        listening = ("127.0.0.1", 0)
        with closing(TransferServer(tmp_path, b"s" * 32, listening, served.tls)) as server:
            assert not is_trusted(server.port, authority.ca)
            authority.add_hosts([NAME])
            served.reload_if_renewed()
            assert is_trusted(server.port, authority.ca)
            authority.server.write_text("damaged")
            with pytest.raises(OSError, match="PEM"):
                served.reload_if_renewed()
            assert is_trusted(server.port, authority.ca)


@needs_page
@pytest.mark.processes
def test_the_page_of_phones_is_served_at_a_name_that_is_added_later(tmp_path: Path) -> None:
    """`coordinator enroll --phone --host NAME` adds it while the server runs."""
    said: list[str] = []
    phones = Phones(listen="127.0.0.1:0", tls=True)
    config = Config(name="r", phones=phones, broker=Broker(pki=str(tmp_path / "pki")))
    with (
        serve_phones(config, "mqtt://127.0.0.1", said.append),
        closing(Authority(tmp_path / "pki")) as authority,
    ):
        port = int(said[0].partition("https://127.0.0.1:")[2].partition("/")[0])
        assert not is_trusted(port, authority.ca)
        authority.add_hosts([NAME])
        eventually(lambda: is_trusted(port, authority.ca))
