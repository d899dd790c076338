"""The certificate authority: which certificates it issues, for how long, and what it refuses."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.access import certificate_authority as authorities
from coordinator.access.certificate_authority import LIFE, Authority
from coordinator.access.certificate_files import list_own_names, read_server_names
from coordinator.broker.mosquitto_config import COORDINATOR
from federated.certificate_request import sign_request
from federated.errors import ConfigError, Refused, StoreError, UsageError
from federated.runtime import atomic_files

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    made = Authority(tmp_path / "pki", ["broker.example", "192.0.2.9"])
    yield made
    made.close()


def der(pem: str) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(serialization.Encoding.DER)


def test_its_files_are_private(authority: Authority) -> None:
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    private = ("root.pem", "server.pem", "coordinator.pem", "registry.sqlite")
    assert {
        name: stat.S_IMODE((authority.folder / name).stat().st_mode) for name in private
    } == dict.fromkeys(private, 0o600)
    assert b"PRIVATE" not in authority.ca.read_bytes() + authority.crl.read_bytes()


@pytest.mark.parametrize(
    ("name", "mode"), [("", 0o750), ("root.pem", 0o640), ("server.pem", 0o604)]
)
def test_a_folder_or_key_that_others_may_read_is_refused_with_a_remedy(
    tmp_path: Path, name: str, mode: int
) -> None:
    Authority(tmp_path / "pki").close()
    (tmp_path / "pki" / name).chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"only this user may open, found mode {mode:04o}.*chmod go="
    ):
        Authority(tmp_path / "pki")


def test_opening_it_again_keeps_its_certificates(authority: Authority) -> None:
    again = Authority(authority.folder)
    assert again.fingerprint == authority.fingerprint
    assert not again.renew_own()
    again.close()


def test_the_broker_certificate_holds_the_names_of_this_machine_and_the_given_ones(
    authority: Authority,
) -> None:
    assert {
        "localhost",
        "127.0.0.1",
        "::1",
        "broker.example",
        "192.0.2.9",
        *list_own_names(),
    } <= set(read_server_names(authority.server))
    authority.add_hosts(["later.example"])
    assert "later.example" in read_server_names(authority.server)


@pytest.mark.parametrize("host", ["", "a b", "münchen", "h/x", "*"])
def test_invalid_hosts_are_refused(authority: Authority, host: str) -> None:
    with pytest.raises(ConfigError, match="host: expected"):
        authority.add_hosts([host])


def test_an_agent_certificate_is_for_clients_backdated_by_minutes_and_lasts_ninety_days(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    made = x509.load_pem_x509_certificate(
        authority.enrol(token.secret, sign_request("a", KEY)).encode()
    )
    now = datetime.now(UTC)
    assert made.subject.rfc4514_string() == "CN=a"
    assert made.public_key() == KEY.public_key()
    assert now - timedelta(minutes=11) < made.not_valid_before_utc < now - timedelta(minutes=9)
    assert abs(made.not_valid_after_utc - now - LIFE) < timedelta(minutes=1)
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_token_works_once_or_again_for_the_same_key(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    first = authority.enrol(token.secret, sign_request("a", KEY))
    assert authority.enrol(token.secret, sign_request("a", KEY)) == first
    with pytest.raises(Refused, match=r"already used.*coordinator revoke a"):
        authority.enrol(token.secret, sign_request("a", OTHER))


def test_a_token_expires_and_is_replaced_by_a_later_one(authority: Authority) -> None:
    now = time.time()
    first = authority.invite("a", "localhost", 8884, 60)
    second = authority.invite("a", "localhost", 8884, 60)
    with pytest.raises(Refused, match="unknown token"):
        authority.enrol(first.secret, sign_request("a", KEY))
    with pytest.raises(Refused, match=r"expired at .* UTC.*coordinator enroll a"):
        authority.enrol(second.secret, sign_request("a", KEY), now=now + 100.5)


def test_no_secret_is_stored(authority: Authority) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    kept = b"".join(path.read_bytes() for path in authority.folder.iterdir())
    assert token.secret not in kept
    assert token.secret.hex().encode() not in kept


def test_a_name_with_a_valid_certificate_cannot_be_enrolled_again(authority: Authority) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    authority.enrol(token.secret, sign_request("a", KEY))
    with pytest.raises(ConfigError, match="first: coordinator revoke a"):
        authority.invite("a", "localhost", 8884, 60)
    authority.revoke("a")
    authority.invite("a", "localhost", 8884, 60)


@pytest.mark.parametrize("name", ["all", "", "a/b", "+", "#", COORDINATOR, "a" * 65])
def test_only_valid_agent_names_are_enrolled(authority: Authority, name: str) -> None:
    with pytest.raises(UsageError, match="agent name"):
        authority.invite(name, "localhost", 8884, 60)
    if name:
        with pytest.raises((Refused, ValueError)):
            authority.enrol(b"x" * 16, sign_request(name, KEY))


@pytest.mark.parametrize(
    "asked",
    ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"],
)
def test_a_malformed_request_is_refused(authority: Authority, asked: str) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    with pytest.raises(Refused, match="certificate request in PEM"):
        authority.enrol(token.secret, asked)
    authority.enrol(token.secret, sign_request("a", KEY))  # the token is still unused


def test_a_request_with_a_foreign_signature_or_another_kind_of_key_is_refused(
    authority: Authority,
) -> None:
    token = authority.invite("a", "localhost", 8884, 60)
    mine, others = (
        key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        for key in (KEY, OTHER)
    )
    signed = x509.load_pem_x509_csr(sign_request("a", KEY).encode()).public_bytes(
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
    with pytest.raises(Refused, match="P-256"):
        authority.enrol(token.secret, weak.public_bytes(serialization.Encoding.PEM).decode())


def test_renewal_requires_a_known_unrevoked_certificate_of_the_same_name(
    authority: Authority, tmp_path: Path
) -> None:
    shown = der(
        authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, sign_request("a", KEY))
    )
    assert (
        x509.load_pem_x509_certificate(
            authority.renew(shown, sign_request("a", OTHER)).encode()
        ).public_key()
        == OTHER.public_key()
    )
    with pytest.raises(Refused, match="belongs to 'a', but the request is for 'b'"):
        authority.renew(shown, sign_request("b", OTHER))
    with pytest.raises(Refused, match="does not belong to an agent"):
        authority.renew(der(authority.coordinator.read_text()), sign_request("a", OTHER))
    authority.revoke("a")
    with pytest.raises(Refused, match="was revoked"):
        authority.renew(shown, sign_request("a", OTHER))


def test_revoking_lists_every_certificate_of_a_name_and_bars_it_until_it_enrols_again(
    authority: Authority,
) -> None:
    shown = der(
        authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, sign_request("a", KEY))
    )
    authority.renew(shown, sign_request("a", OTHER))
    authority.enrol(authority.invite("b", "localhost", 8884, 60).secret, sign_request("b", KEY))
    assert authority.revoke("a") == 2
    listed = x509.load_pem_x509_crl(authority.crl.read_bytes())
    assert {f"{one.serial_number:x}" for one in listed} == {
        one.serial for one in authority.registry.list_certificates() if one.name == "a"
    }
    assert listed.is_signature_valid(
        x509.load_pem_x509_certificate(authority.ca.read_bytes()).public_key()
    )  # type: ignore[arg-type]
    assert listed.next_update_utc is not None
    assert authority.registry.list_barred() == {"a"}
    authority.enrol(authority.invite("a", "localhost", 8884, 60).secret, sign_request("a", KEY))
    assert authority.registry.list_barred() == frozenset()


def test_many_agents_are_revoked_with_one_list(authority: Authority) -> None:
    for name in ("a", "b", "c"):
        token = authority.invite(name, "localhost", 8884, 60)
        authority.enrol(token.secret, sign_request(name, KEY))
    with mock.patch.object(atomic_files, "write", wraps=atomic_files.write) as write:
        assert authority.revoke_all(["a", "b", "nobody"]) == {"a": 1, "b": 1, "nobody": 0}
    assert [call.args[0] for call in write.call_args_list] == [authority.crl]
    assert len(list(x509.load_pem_x509_crl(authority.crl.read_bytes()))) == 2
    assert authority.registry.list_barred() == {"a", "b"}


def test_an_agent_with_renewed_and_expired_certificates_is_barred_when_revoked(
    authority: Authority,
) -> None:
    token = authority.invite("a", "h", 1, 60)
    first = authority.enrol(token.secret, sign_request("a", KEY))
    authority.renew(der(first), sign_request("a", OTHER))
    later = time.time() + LIFE.total_seconds() + 60
    authority.renew(der(first), sign_request("a", OTHER), life=2 * LIFE)
    assert authority.revoke("a", later) == 1  # the earlier ones have expired
    assert authority.registry.list_barred() == {"a"}


def test_the_number_of_renewals_is_limited(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorities, "MOST", 3)
    shown = der(authority.enrol(authority.invite("a", "h", 1, 60).secret, sign_request("a", KEY)))
    for _ in range(2):
        authority.renew(shown, sign_request("a", OTHER))
    with pytest.raises(Refused, match="'a' already has 3 valid certificates"):
        authority.renew(shown, sign_request("a", OTHER))


def test_its_own_certificates_and_list_are_renewed_before_they_expire(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [
        path.read_bytes() for path in (authority.server, authority.coordinator, authority.crl)
    ]
    with monkeypatch.context() as patch:
        # ten of its eleven minutes have passed, because it is backdated
        patch.setattr(authorities, "OWN_LIFE", timedelta(minutes=1))
        patch.setattr(authorities, "LIST_LIFE", timedelta(hours=1))
        for path in (authority.server, authority.coordinator, authority.crl):
            path.unlink()
        assert authority.renew_own()
    assert authority.renew_own()
    assert not authority.renew_own()
    after = [path.read_bytes() for path in (authority.server, authority.coordinator, authority.crl)]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError,
        match=r"authority's folder .*file/pki: a file is in place.*--pki",
    ):
        Authority(tmp_path / "file" / "pki")
