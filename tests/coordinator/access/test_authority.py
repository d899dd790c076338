"""The authority: what it signs, for whom, for how long, and what it refuses."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.access import authority as authorities
from coordinator.access.authority import LIFE, Authority
from coordinator.access.certificates import own_names, server_names
from coordinator.broker.mosquitto import COORDINATOR
from edge_agent.access.enrol import request
from federated.errors import ConfigError, Refused, UsageError

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    made = Authority(tmp_path / "pki", ["broker.example", "192.0.2.9"])
    yield made
    made.close()


def der(pem: str) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(serialization.Encoding.DER)


def test_nobody_else_may_open_what_it_writes(authority: Authority) -> None:
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    private = ("root.pem", "server.pem", "coordinator.pem", "registry.sqlite")
    assert {
        name: stat.S_IMODE((authority.folder / name).stat().st_mode) for name in private
    } == dict.fromkeys(private, 0o600)
    assert b"PRIVATE" not in authority.ca.read_bytes() + authority.crl.read_bytes()


@pytest.mark.parametrize(
    ("name", "mode"), [("", 0o750), ("root.pem", 0o640), ("server.pem", 0o604)]
)
def test_a_folder_or_key_that_others_may_open_is_refused_with_the_remedy(
    tmp_path: Path, name: str, mode: int
) -> None:
    Authority(tmp_path / "pki").close()
    (tmp_path / "pki" / name).chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"only this user may open, found mode {mode:04o}.*chmod go="
    ):
        Authority(tmp_path / "pki")


def test_it_is_the_same_when_it_is_opened_again(authority: Authority) -> None:
    again = Authority(authority.folder)
    assert again.fingerprint == authority.fingerprint
    assert not again.tend()
    again.close()


def test_the_brokers_certificate_holds_every_name_of_this_machine_and_those_that_were_given(
    authority: Authority,
) -> None:
    assert {"localhost", "127.0.0.1", "::1", "broker.example", "192.0.2.9", *own_names()} <= set(
        server_names(authority.server)
    )
    authority.add_hosts(["later.example"])
    assert "later.example" in server_names(authority.server)


@pytest.mark.parametrize("host", ["", "a b", "münchen", "h/x", "*"])
def test_what_is_no_host_gets_no_certificate(authority: Authority, host: str) -> None:
    with pytest.raises(
        ConfigError, match="--host: expected a host's name in ASCII or an IP address"
    ):
        authority.add_hosts([host])


def test_an_agents_certificate_names_it_and_is_for_clients_from_some_minutes_ago_for_ninety_days(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    made = x509.load_pem_x509_certificate(authority.enrol(token.secret, request("a", KEY)).encode())
    now = datetime.now(UTC)
    assert made.subject.rfc4514_string() == "CN=a"
    assert made.public_key() == KEY.public_key()
    assert now - timedelta(minutes=11) < made.not_valid_before_utc < now - timedelta(minutes=9)
    assert abs(made.not_valid_after_utc - now - LIFE) < timedelta(minutes=1)
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_token_works_once_but_again_for_the_same_key_whose_answer_was_lost(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    first = authority.enrol(token.secret, request("a", KEY))
    assert authority.enrol(token.secret, request("a", KEY)) == first
    with pytest.raises(
        Refused, match="used already; if that was not this device, revoke 'a' at once"
    ):
        authority.enrol(token.secret, request("a", OTHER))


def test_a_token_ends_and_is_replaced_by_a_later_one(authority: Authority) -> None:
    now = time.time()
    first = authority.invite("a", "localhost", 8884, 60)
    second = authority.invite("a", "localhost", 8884, 60)
    with pytest.raises(Refused, match="unknown here: it was replaced"):
        authority.enrol(first.secret, request("a", KEY))
    with pytest.raises(Refused, match=r"ended 40 s ago: ask for another \(coordinator enroll a\)"):
        authority.enrol(second.secret, request("a", KEY), now=now + 100.5)


def test_no_secret_is_kept(authority: Authority) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    kept = b"".join(path.read_bytes() for path in authority.folder.iterdir())
    assert token.secret not in kept
    assert token.secret.hex().encode() not in kept


def test_a_name_with_a_good_certificate_gets_no_second_device(authority: Authority) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    authority.enrol(token.secret, request("a", KEY))
    with pytest.raises(ConfigError, match="revoke that first: coordinator revoke a"):
        authority.invite("a", "localhost", 8884, 60)
    authority.revoke("a")
    authority.invite("a", "localhost", 8884, 60)


@pytest.mark.parametrize("name", ["all", "", "a/b", "+", "#", COORDINATOR, "a" * 65])
def test_only_agents_names_are_enrolled(authority: Authority, name: str) -> None:
    with pytest.raises(UsageError, match="agent name"):
        authority.invite(name, "localhost", 8884, 60)
    if name:
        with pytest.raises((Refused, ValueError)):
            authority.enrol(b"x" * 16, request(name, KEY))


@pytest.mark.parametrize(
    "asked",
    ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"],
)
def test_what_is_no_request_is_refused(authority: Authority, asked: str) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    with pytest.raises(Refused, match="expected a request"):
        authority.enrol(token.secret, asked)
    authority.enrol(token.secret, request("a", KEY))  # it did not use the token up


def test_a_request_that_its_own_key_did_not_sign_or_of_another_kind_of_key_is_refused(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    mine, others = (
        key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        for key in (KEY, OTHER)
    )
    signed = x509.load_pem_x509_csr(request("a", KEY).encode()).public_bytes(
        serialization.Encoding.DER
    )
    pem = (
        x509.load_der_x509_csr(signed.replace(mine, others))
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )
    with pytest.raises(Refused, match="expected a request"):
        authority.enrol(token.secret, pem)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")])
    weak = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(rsa.generate_private_key(65537, 2048), authorities.hashes.SHA256())
    )
    with pytest.raises(Refused, match=r"of the curve P-256"):
        authority.enrol(token.secret, weak.public_bytes(serialization.Encoding.PEM).decode())


def test_renewing_takes_a_certificate_of_the_same_name_that_is_known_and_not_revoked(
    authority: Authority, tmp_path: Path
) -> None:
    shown = der(
        authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, request("a", KEY))
    )
    assert (
        x509.load_pem_x509_certificate(
            authority.renew(shown, request("a", OTHER)).encode()
        ).public_key()
        == OTHER.public_key()
    )
    with pytest.raises(Refused, match="is of 'a', the new one is asked for 'b'"):
        authority.renew(shown, request("b", OTHER))
    with pytest.raises(Refused, match="none of an agent that was enrolled here"):
        authority.renew(der(authority.coordinator.read_text()), request("a", OTHER))
    authority.revoke("a")
    with pytest.raises(Refused, match="was revoked: it is not renewed"):
        authority.renew(shown, request("a", OTHER))


def test_revoking_lists_every_certificate_of_a_name_and_bars_it_until_it_is_enrolled_anew(
    authority: Authority,
) -> None:
    shown = der(
        authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, request("a", KEY))
    )
    authority.renew(shown, request("a", OTHER))
    authority.enrol(authority.invite("b", "localhost", 8884, 60).secret, request("b", KEY))
    assert authority.revoke("a") == 2
    listed = x509.load_pem_x509_crl(authority.crl.read_bytes())
    assert {f"{one.serial_number:x}" for one in listed} == {
        one.serial for one in authority.registry.certificates() if one.name == "a"
    }
    assert listed.is_signature_valid(
        x509.load_pem_x509_certificate(authority.ca.read_bytes()).public_key()
    )  # type: ignore[arg-type]
    assert listed.next_update_utc is not None
    assert authority.registry.barred() == {"a"}
    authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, request("a", KEY))
    assert authority.registry.barred() == frozenset()


def test_who_renewed_for_longer_than_a_certificate_lasts_is_barred_like_any_other(
    authority: Authority,
) -> None:
    token = authority.invite("a", "h", 1, 60)
    first = authority.enrol(token.secret, request("a", KEY))
    authority.renew(der(first), request("a", OTHER))
    later = time.time() + LIFE.total_seconds() + 60
    authority.renew(der(first), request("a", OTHER), life=2 * LIFE)
    assert authority.revoke("a", later) == 1  # those of before are over
    assert authority.registry.barred() == {"a"}


def test_nobody_fills_the_registry_by_renewing(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "MOST", 3)
    shown = der(authority.enrol(authority.invite("a", "h", 1, 60).secret, request("a", KEY)))
    for _ in range(2):
        authority.renew(shown, request("a", OTHER))
    with pytest.raises(Refused, match="'a' has 3 certificates that are good"):
        authority.renew(shown, request("a", OTHER))


def test_its_own_certificates_and_list_are_made_again_before_they_end(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [
        path.read_bytes() for path in (authority.server, authority.coordinator, authority.crl)
    ]
    with monkeypatch.context() as patch:
        # of which the ten minutes that it is backdated are most
        patch.setattr(authorities, "OWN_LIFE", timedelta(minutes=1))
        patch.setattr(authorities, "LIST_LIFE", timedelta(hours=1))
        for path in (authority.server, authority.coordinator, authority.crl):
            path.unlink()
        assert authority.tend()
    assert authority.tend()
    assert not authority.tend()
    after = [path.read_bytes() for path in (authority.server, authority.coordinator, authority.crl)]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError,
        match=r"authority's folder .*file/pki cannot be made: Not a directory; name another by "
        r"--pki",
    ):
        Authority(tmp_path / "file" / "pki")
