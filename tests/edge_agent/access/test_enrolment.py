"""Enrolment over real TLS: certificates, the servers that a device trusts, and errors."""

from __future__ import annotations

import socket
import ssl
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.access import enrolment_server as offices
from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from edge_agent.access import enrolment
from edge_agent.access.broker_credentials import resolve_broker
from edge_agent.access.enrolment_files import load_credentials, locate_enrolment
from federated.errors import LinkError, UsageError
from federated.wire.enrolment_token import Token
from federated.wire.mqtt_address import MqttAddress
from tests.support.proxy import ConnectProxy


def test_enrolling_saves_a_certificate_with_a_local_key_readable_by_its_owner_only(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrolment.enrol(token, locate_enrolment(token))
    assert made.broker_address == MqttAddress(
        "localhost", 8883, tls=True, ca=str(made.ca), cert=str(made.pem)
    )
    assert made.ca.read_bytes() == authority.ca.read_bytes()
    assert stat.S_IMODE(made.pem.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    ssl.create_default_context().load_cert_chain(made.pem)
    assert b"PRIVATE" not in b"".join(
        path.read_bytes() for path in authority.folder.iterdir() if path.name.startswith("registry")
    )
    assert not (made.folder / "key.pem").exists()


def test_a_token_enrols_one_device_and_a_restart_sends_no_request(
    token: Token, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve_broker(None, None, str(token))
    monkeypatch.setattr(enrolment, "send_request", None)
    assert resolve_broker(None, None, str(token)) == first
    monkeypatch.undo()
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "another"))
    with pytest.raises(LinkError, match=f"already used.*coordinator revoke {token.name}"):
        resolve_broker(None, None, str(token))


def test_a_lost_answer_is_requested_again(
    token: Token, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            enrolment,
            "save_certificate",
            lambda *a: (_ for _ in ()).throw(LinkError("the power failed")),
        )
        with pytest.raises(LinkError, match="the power failed"):
            enrolment.enrol(token, locate_enrolment(token))
    assert enrolment.count_seconds_left(enrolment.enrol(token, locate_enrolment(token)).pem) > 0


def test_nothing_is_sent_to_an_authority_that_the_token_does_not_name(
    token: Token, device: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, ("127.0.0.1", 0), "8883")
    try:
        with pytest.raises(
            LinkError,
            match=r"shows another authority than the token names .* Nothing was sent",
        ):
            enrolment.enrol(
                Token(token.name, token.host, false.port, token.secret, token.fingerprint),
                locate_enrolment(token),
            )
    finally:
        false.close()
        other.close()
    assert load_credentials() == []


def test_a_server_without_a_certificate_from_the_authority_is_not_trusted(
    token: Token, authority: Authority, device: Path, tmp_path: Path
) -> None:
    """Anyone can fetch the authority's certificate and show it."""
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, ("127.0.0.1", 0), "8883")
    other.ca = authority.ca
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.enrol(
                Token(token.name, token.host, false.port, token.secret, token.fingerprint),
                locate_enrolment(token),
            )
    finally:
        false.close()
        other.close()
    with pytest.raises(OSError, match="No such file"):
        locate_enrolment(token).joinpath("agent.pem").stat()


def test_a_second_authority_after_the_right_one_is_not_trusted(
    authority: Authority, device: Path, tmp_path: Path
) -> None:
    """The fingerprint does not cover what follows the padding of a certificate's base64."""
    right = next(made for i in range(50) if len(der(made := Authority(tmp_path / f"{i}"))) % 3)
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, ("127.0.0.1", 0), "8883")
    both = tmp_path / "both.pem"
    both.write_bytes(right.ca.read_bytes() + other.ca.read_bytes())
    other.ca = both
    token = Token("a", "localhost", false.port, bytes(16), right.fingerprint)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.enrol(token, locate_enrolment(token))
    finally:
        false.close()
        other.close()


def der(authority: Authority) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.ca.read_text())


def test_an_agents_certificate_is_not_accepted_from_a_server(
    token: Token, authority: Authority, device: Path
) -> None:
    """It is for clients: an agent cannot enrol others in place of the coordinator."""
    made = enrolment.enrol(token, locate_enrolment(token))
    false = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
    false.context.load_cert_chain(made.pem)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.post(
                MqttAddress("localhost", false.port, tls=True, ca=str(made.ca)),
                "/enrol",
                offices.Ask("00" * 16, "x"),
            )
    finally:
        false.close()


def test_an_expired_token_or_one_for_another_name_is_rejected(
    token: Token, authority: Authority, device: Path
) -> None:
    with authority.registry.transaction():
        authority.registry.add_token(token.secret, token.name, time.time() - 300)
    with pytest.raises(
        LinkError,
        match=f"expired at .* UTC.*coordinator enroll {token.name}.",
    ):
        resolve_broker(None, None, str(token))
    forged = Token("b", token.host, token.port, token.secret, token.fingerprint)
    with pytest.raises(LinkError, match=f"for '{token.name}', not for 'b'"):
        resolve_broker(None, None, str(forged))
    with pytest.raises(UsageError, match=f"--name b: expected the token's name '{token.name}'"):
        resolve_broker(None, "b", str(token))


def test_an_unreachable_authority_is_reported(token: Token, device: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with pytest.raises(LinkError, match=r"connection refused.*--tls.*--host"):
        resolve_broker(
            None, None, str(Token("a", "localhost", free, token.secret, token.fingerprint))
        )
    with pytest.raises(LinkError, match=r"does not resolve.*--host ADDRESS"):
        resolve_broker(
            None,
            None,
            str(Token("a", "no.such.host.invalid", free, token.secret, token.fingerprint)),
        )


def test_a_device_enrols_through_the_proxy_of_the_environment(
    device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Authority(tmp_path / "pki", ["fleet.invalid"])) as authority:
        server = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
        proxy = ConnectProxy(server.port)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        token = authority.invite("a", "fleet.invalid", server.port, 60)
        made = enrolment.enrol(token, locate_enrolment(token))
        proxy.close()
        server.close()
        with pytest.raises(LinkError, match=rf"HTTP proxy 127.0.0.1:{proxy.port} .*https_proxy"):
            enrolment.renew(made)
    assert proxy.asked == 2 * [f"fleet.invalid:{server.port}"]
