"""Enrolling over the network: the real endpoint, the real device, and who stands in between."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from coordinator import enrolment as offices
from coordinator.authority import Authority
from coordinator.enrolment import Enrolment
from edge_agent import credentials, enrolment
from edge_agent.credentials import Credentials, admitted, folder_of, read_token, renew_when_due, stored
from federated.errors import ConfigError, LinkError, UsageError
from federated.wire.address import Address, parse_address
from federated.wire.enrolment import LARGEST, Token


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    made = Authority(tmp_path_factory.mktemp("pki"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def office(authority: Authority) -> Iterator[Enrolment]:
    made = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    yield made
    made.close()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state of a device."""
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def token(authority: Authority, office: Enrolment, request: pytest.FixtureRequest) -> Token:
    return authority.invite(f"a{abs(hash(request.node.name))}", "localhost", office.port, 60)


def test_a_token_brings_a_certificate_whose_key_was_made_here_and_nobody_else_may_open(token: Token, authority: Authority, device: Path) -> None:
    made = enrolment.enrol(token, folder_of(token))
    assert made.door == Address("localhost", 8883, tls=True, ca=str(made.ca), cert=str(made.pem))
    assert made.ca.read_bytes() == authority.ca.read_bytes()
    assert stat.S_IMODE(made.pem.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    ssl.create_default_context().load_cert_chain(made.pem)
    assert b"PRIVATE" not in b"".join(path.read_bytes() for path in authority.folder.iterdir() if path.name.startswith("registry"))
    assert not (made.folder / "key.pem").exists()


def test_a_second_start_with_the_same_token_asks_nobody_and_a_second_device_is_refused(
    token: Token, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = admitted(None, None, str(token))
    monkeypatch.setattr(enrolment, "spoken", None)
    assert admitted(None, None, str(token)) == first
    monkeypatch.undo()
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "another"))
    with pytest.raises(LinkError, match=f"used already; if that was not this device, revoke '{token.name}' at once"):
        admitted(None, None, str(token))


def test_an_answer_that_was_lost_is_asked_for_again(token: Token, device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "keep", lambda *a: (_ for _ in ()).throw(LinkError("the power failed")))
        with pytest.raises(LinkError, match="the power failed"):
            enrolment.enrol(token, folder_of(token))
    assert enrolment.left(enrolment.enrol(token, folder_of(token)).pem) > 0


def test_another_authority_than_the_tokens_is_told_nothing(token: Token, device: Path, tmp_path: Path) -> None:
    other = Authority(tmp_path / "pki")
    false = Enrolment(other, "127.0.0.1", 0, lambda: "8883")
    try:
        with pytest.raises(LinkError, match=r"shows another authority than the token names .* Nothing was said to it"):
            enrolment.enrol(Token(token.name, token.host, false.port, token.secret, token.fingerprint), folder_of(token))
    finally:
        false.close()
        other.close()
    assert stored() == []


def test_who_hands_over_the_right_authority_but_has_no_certificate_of_it_is_told_nothing(
    token: Token, authority: Authority, device: Path, tmp_path: Path
) -> None:
    """Someone in between can fetch the authority's certificate as everybody can."""
    other = Authority(tmp_path / "pki")
    false = Enrolment(other, "127.0.0.1", 0, lambda: "8883")
    other.ca = authority.ca
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.enrol(Token(token.name, token.host, false.port, token.secret, token.fingerprint), folder_of(token))
    finally:
        false.close()
        other.close()
    with pytest.raises(OSError, match="No such file"):
        folder_of(token).joinpath("agent.pem").stat()


def test_an_authority_that_hides_behind_the_right_one_is_not_trusted(authority: Authority, device: Path, tmp_path: Path) -> None:
    """What follows the padding of a certificate's base64 is not read, so it is in no fingerprint."""
    right = next(made for i in range(50) if len(der(made := Authority(tmp_path / f"{i}"))) % 3)
    other = Authority(tmp_path / "pki")
    false = Enrolment(other, "127.0.0.1", 0, lambda: "8883")
    both = tmp_path / "both.pem"
    both.write_bytes(right.ca.read_bytes() + other.ca.read_bytes())
    other.ca = both
    token = Token("a", "localhost", false.port, bytes(16), right.fingerprint)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.enrol(token, folder_of(token))
    finally:
        false.close()
        other.close()


def der(authority: Authority) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.ca.read_text())


def test_an_agents_certificate_does_not_make_it_an_office(token: Token, authority: Authority, device: Path) -> None:
    """It is for clients: with it nobody can enrol others in the coordinator's place."""
    made = enrolment.enrol(token, folder_of(token))
    false = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    false.context.load_cert_chain(made.pem)
    try:
        with pytest.raises(LinkError, match="its certificate is not trusted"):
            enrolment.asked(Address("localhost", false.port, tls=True, ca=str(made.ca)), "/enrol", offices.Ask("00" * 16, "x"))
    finally:
        false.close()


def test_a_token_that_is_over_or_for_another_name_is_refused_with_the_remedy(token: Token, authority: Authority, device: Path) -> None:
    with authority.registry.alone():
        authority.registry.promise(token.secret, token.name, time.time() - 300)
    with pytest.raises(LinkError, match=f"refuses: this token ended 5 min ago: ask for another .coordinator enroll {token.name}."):
        admitted(None, None, str(token))
    forged = Token("b", token.host, token.port, token.secret, token.fingerprint)
    with pytest.raises(LinkError, match=f"this token is for '{token.name}', not for 'b'"):
        admitted(None, None, str(forged))
    with pytest.raises(UsageError, match=f"--name b: the token is for '{token.name}'"):
        admitted(None, "b", str(token))


def test_nobody_there_and_a_name_that_does_not_resolve_are_said(token: Token, device: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with pytest.raises(LinkError, match="nobody listens there; does the coordinator run with --tls"):
        admitted(None, None, str(Token("a", "localhost", free, token.secret, token.fingerprint)))
    with pytest.raises(LinkError, match="does not resolve here: ask for a token with --host ADDRESS"):
        admitted(None, None, str(Token("a", "no.such.host.invalid", free, token.secret, token.fingerprint)))


# ---- later -----------------------------------------------------------------------------------------------------------


def test_later_the_brokers_address_is_enough(token: Token, device: Path) -> None:
    first, name = admitted(None, None, str(token))
    assert name == token.name
    assert admitted("mqtts://localhost", None) == (first, token.name)
    assert admitted("mqtts://elsewhere", None) == ("mqtts://elsewhere:8883", None)
    assert admitted("localhost", None) == ("localhost", None)
    assert admitted("mqtts://me:x@localhost", None) == ("mqtts://me:x@localhost:8883", "me")
    assert first is not None
    assert parse_address(first).cert == str(stored()[0].pem)
    stored()[0].pem.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod go="):
        admitted("mqtts://localhost", None)


def test_several_enrolments_of_one_device_want_a_choice(authority: Authority, office: Enrolment, device: Path) -> None:
    for name in ("one", "two"):
        admitted(None, None, str(authority.invite(name, "localhost", office.port, 60)))
    with pytest.raises(UsageError, match="enrolled at mqtts://localhost:8883 as one, two: choose by --name"):
        admitted("mqtts://localhost", None)
    assert admitted("mqtts://localhost", "two")[1] == "two"


def test_a_user_is_the_agent_of_that_name() -> None:
    assert admitted("mqtt://pi:x@host", None) == ("mqtt://pi:x@host", "pi")
    assert admitted("mqtt://pi:x@host", "other")[1] == "other"
    assert admitted("mqtt://all:x@host", None)[1] is None


def shortened(made: Credentials, authority: Authority, life: timedelta) -> None:
    """Puts a certificate of another life in the place of a device's."""
    key = enrolment.pending(made.folder / "key.pem")
    shown = enrolment.certificate(made.pem).public_bytes(enrolment.serialization.Encoding.DER)
    made.pem.write_bytes(authority.renew(shown, enrolment.request(made.name, key), life=life).encode() + enrolment.text_of(key))
    made.pem.chmod(0o600)


def test_a_certificate_is_renewed_with_another_key_in_its_last_third_and_not_before(token: Token, authority: Authority, device: Path) -> None:
    made = enrolment.enrol(token, folder_of(token))
    assert not renew_when_due(made)
    shortened(made, authority, timedelta(minutes=4))  # of fourteen: it is backdated by ten
    before = made.pem.read_bytes()
    assert renew_when_due(made)
    assert made.pem.read_bytes() != before
    assert enrolment.left(made.pem) > timedelta(days=89).total_seconds()
    assert enrolment.certificate(made.pem).public_key() != enrolment.x509.load_pem_x509_certificate(before).public_key()
    ssl.create_default_context().load_cert_chain(made.pem)


def test_a_revoked_certificate_is_not_renewed_and_the_old_one_stays(token: Token, authority: Authority, device: Path) -> None:
    made = enrolment.enrol(token, folder_of(token))
    shortened(made, authority, timedelta(minutes=4))
    before = made.pem.read_bytes()
    authority.revoke(made.name)
    with pytest.raises(LinkError, match=f"refuses: the certificate of '{made.name}' was revoked: it is not renewed"):
        renew_when_due(made)
    assert made.pem.read_bytes() == before
    fresh = authority.invite(made.name, token.host, token.port, 60)
    admitted(None, None, str(fresh))  # a new token brings it back
    assert made.pem.read_bytes() != before


def test_a_certificate_that_is_over_is_told_to_enrol_anew(token: Token, authority: Authority, device: Path) -> None:
    made = enrolment.enrol(token, folder_of(token))
    shortened(made, authority, timedelta(seconds=-1))
    with pytest.raises(LinkError, match=r"only one that is good can be renewed: if this device's clock is right .* ask for a token"):
        renew_when_due(made)


# ---- the endpoint ----------------------------------------------------------------------------------------------------


def asked(office: Enrolment, authority: Authority, method: str, path: str, body: bytes = b"") -> tuple[int, object]:
    link = http.client.HTTPSConnection("localhost", office.port, timeout=10, context=ssl.create_default_context(cafile=str(authority.ca)))
    link.request(method, path, body)
    answer = link.getresponse()
    found = answer.read()
    link.close()
    try:
        return answer.status, json.loads(found).get("error")
    except ValueError:
        return answer.status, None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/enrol", b"", 405),
        ("POST", "/enrol", b"", 400),
        ("POST", "/enrol", b"[" * 10_000, 400),
        ("POST", "/enrol", b'{"secret": "zz", "request": ""}', 400),
        ("POST", "/enrol", b'{"secret": "' + b"00" * 16 + b'", "request": ""}', 403),
        ("POST", "/enrol", b"x" * (LARGEST + 1), 413),
        ("POST", "/renew", b'{"request": ""}', 401),
    ],
)
def test_what_is_no_question_is_refused_and_breaks_nothing(
    office: Enrolment, authority: Authority, method: str, path: str, body: bytes, status: int
) -> None:
    assert asked(office, authority, method, path, body)[0] == status
    assert asked(office, authority, "GET", "/authority")[0] == 200


def test_who_is_slow_is_cut_off_and_keeps_nobody_out(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offices, "LASTING", 1.0)
    monkeypatch.setattr(offices, "OPEN", 4)
    office = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    context = ssl.create_default_context(cafile=str(authority.ca))
    try:
        slow = [context.wrap_socket(socket.create_connection(("127.0.0.1", office.port)), server_hostname="localhost") for _ in range(4)]
        for one in slow:
            one.sendall(b"POST /enrol HTTP/1.1\r\n")
        time.sleep(1.5)
        assert asked(office, authority, "GET", "/authority")[0] == 200
        for one in slow:
            one.close()
    finally:
        office.close()


def test_who_does_not_even_begin_tls_keeps_nobody_out_and_is_cut_off(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offices, "OPEN", 4)
    monkeypatch.setattr(offices, "LASTING", 2.0)
    office = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    try:
        silent = [socket.create_connection(("127.0.0.1", office.port), timeout=10) for _ in range(10)]
        assert asked(office, authority, "GET", "/authority")[0] == 200
        start = time.monotonic()
        assert [one.recv(1) for one in silent] == [b""] * 10
        assert time.monotonic() - start < 5
        for one in silent:
            one.close()
    finally:
        office.close()


# ---- tokens from elsewhere -------------------------------------------------------------------------------------------


def test_a_token_comes_from_a_flag_or_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text("token\n")
    assert read_token("x", None) == "x"
    assert read_token(None, tmp_path / "t") == "token\n"
    assert read_token(None, None) is None
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    with os.fdopen(read) as typed:
        monkeypatch.setattr(credentials.sys, "stdin", typed)
        assert read_token(None, Path("-")) == "typed\n"
    with pytest.raises(UsageError, match="give one of them"):
        read_token("x", Path("-"))
    with pytest.raises(ConfigError, match=quote("none", safe="")):
        read_token(None, tmp_path / "none")
