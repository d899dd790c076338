"""A device enrols, over real TLS: who gets a certificate, whom it trusts, and what it says when it
cannot.
"""

from __future__ import annotations

import socket
import ssl
import stat
import time
from pathlib import Path

import pytest

from coordinator.access import enrolment_server as offices
from coordinator.access.authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from edge_agent.access import enrol
from edge_agent.access.admission import admitted
from edge_agent.access.credentials import folder_of, stored
from federated.errors import LinkError, UsageError
from federated.wire.address import Address
from federated.wire.enrolment_token import Token


def test_a_token_brings_a_certificate_whose_key_was_made_here_and_nobody_else_may_open(
    token: Token, authority: Authority, device: Path
) -> None:
    made = enrol.enrol(token, folder_of(token))
    assert made.door == Address("localhost", 8883, tls=True, ca=str(made.ca), cert=str(made.pem))
    assert made.ca.read_bytes() == authority.ca.read_bytes()
    assert stat.S_IMODE(made.pem.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    ssl.create_default_context().load_cert_chain(made.pem)
    assert b"PRIVATE" not in b"".join(
        path.read_bytes() for path in authority.folder.iterdir() if path.name.startswith("registry")
    )
    assert not (made.folder / "key.pem").exists()


def test_a_second_start_with_the_same_token_asks_nobody_and_a_second_device_is_refused(
    token: Token, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = admitted(None, None, str(token))
    monkeypatch.setattr(enrol, "spoken", None)
    assert admitted(None, None, str(token)) == first
    monkeypatch.undo()
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "another"))
    with pytest.raises(LinkError, match=f"already used.*coordinator revoke {token.name}"):
        admitted(None, None, str(token))


def test_an_answer_that_was_lost_is_asked_for_again(
    token: Token, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            enrol, "keep", lambda *a: (_ for _ in ()).throw(LinkError("the power failed"))
        )
        with pytest.raises(LinkError, match="the power failed"):
            enrol.enrol(token, folder_of(token))
    assert enrol.left(enrol.enrol(token, folder_of(token)).pem) > 0


def test_another_authority_than_the_tokens_is_told_nothing(
    token: Token, device: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, "127.0.0.1", 0, lambda: "8883")
    try:
        with pytest.raises(
            LinkError,
            match=r"shows another authority than the token names .* Nothing was said to it",
        ):
            enrol.enrol(
                Token(token.name, token.host, false.port, token.secret, token.fingerprint),
                folder_of(token),
            )
    finally:
        false.close()
        other.close()
    assert stored() == []


def test_who_hands_over_the_right_authority_but_has_no_certificate_of_it_is_told_nothing(
    token: Token, authority: Authority, device: Path, tmp_path: Path
) -> None:
    """Someone in between can fetch the authority's certificate as everybody can."""
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, "127.0.0.1", 0, lambda: "8883")
    other.ca = authority.ca
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrol.enrol(
                Token(token.name, token.host, false.port, token.secret, token.fingerprint),
                folder_of(token),
            )
    finally:
        false.close()
        other.close()
    with pytest.raises(OSError, match="No such file"):
        folder_of(token).joinpath("agent.pem").stat()


def test_an_authority_that_hides_behind_the_right_one_is_not_trusted(
    authority: Authority, device: Path, tmp_path: Path
) -> None:
    """What follows the padding of a certificate's base64 is not read, so it is in no
    fingerprint.
    """
    right = next(made for i in range(50) if len(der(made := Authority(tmp_path / f"{i}"))) % 3)
    other = Authority(tmp_path / "pki")
    false = EnrolmentServer(other, "127.0.0.1", 0, lambda: "8883")
    both = tmp_path / "both.pem"
    both.write_bytes(right.ca.read_bytes() + other.ca.read_bytes())
    other.ca = both
    token = Token("a", "localhost", false.port, bytes(16), right.fingerprint)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrol.enrol(token, folder_of(token))
    finally:
        false.close()
        other.close()


def der(authority: Authority) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.ca.read_text())


def test_an_agents_certificate_does_not_make_it_an_office(
    token: Token, authority: Authority, device: Path
) -> None:
    """It is for clients: with it nobody can enrol others in the coordinator's place."""
    made = enrol.enrol(token, folder_of(token))
    false = EnrolmentServer(authority, "127.0.0.1", 0, lambda: "8883")
    false.context.load_cert_chain(made.pem)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrol.asked(
                Address("localhost", false.port, tls=True, ca=str(made.ca)),
                "/enrol",
                offices.Ask("00" * 16, "x"),
            )
    finally:
        false.close()


def test_a_token_that_is_over_or_for_another_name_is_refused_with_the_remedy(
    token: Token, authority: Authority, device: Path
) -> None:
    with authority.registry.transaction():
        authority.registry.add_token(token.secret, token.name, time.time() - 300)
    with pytest.raises(
        LinkError,
        match=f"expired 5 min ago.*coordinator enroll {token.name}.",
    ):
        admitted(None, None, str(token))
    forged = Token("b", token.host, token.port, token.secret, token.fingerprint)
    with pytest.raises(LinkError, match=f"for '{token.name}', not for 'b'"):
        admitted(None, None, str(forged))
    with pytest.raises(UsageError, match=f"--name b: expected the token's name '{token.name}'"):
        admitted(None, "b", str(token))


def test_nobody_there_and_a_name_that_does_not_resolve_are_said(token: Token, device: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with pytest.raises(
        LinkError, match="nobody listens there; does the coordinator run with --tls"
    ):
        admitted(None, None, str(Token("a", "localhost", free, token.secret, token.fingerprint)))
    with pytest.raises(
        LinkError, match="does not resolve here: ask for a token with --host ADDRESS"
    ):
        admitted(
            None,
            None,
            str(Token("a", "no.such.host.invalid", free, token.secret, token.fingerprint)),
        )
