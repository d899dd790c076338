"""TLS of a link: what a refusal means is said in words that help."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from coordinator.access.authority import Authority
from coordinator.access.certificates import Pair, make_name, read_pair, to_general_name, write_pair
from federated.errors import ConfigError
from federated.wire import tls
from federated.wire.address import Address
from tests.support.authority import member


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    authority = Authority(tmp_path_factory.mktemp("pki"), ["broker.example"])
    yield authority
    authority.close()


@contextlib.contextmanager
def serving(
    pem: Path, authority: Authority, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[int]:
    """A server that wants certificates of an authority, and its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = newest
    context.load_cert_chain(pem)
    context.load_verify_locations(authority.ca)
    context.load_verify_locations(authority.crl)
    context.verify_mode, context.verify_flags = (
        ssl.CERT_REQUIRED,
        ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF,
    )
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            while True:
                try:
                    plain, _ = door.accept()
                except OSError:
                    return
                with (
                    contextlib.suppress(OSError),
                    plain,
                    context.wrap_socket(plain, server_side=True) as client,
                ):
                    client.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(door.getsockname()[1])
        door.shutdown(socket.SHUT_RDWR)
        thread.join()


def server(
    authority: Authority, folder: Path, begins: timedelta, ends: timedelta, host: str = "localhost"
) -> Path:
    """A server's certificate of the authority, from now + begins to now + ends."""
    root, now = read_pair(authority.folder / "root.pem"), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(make_name("s"))
        .issuer_name(root.certificate.subject)
        .public_key(root.key.public_key())
    )
    builder = (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
    builder = builder.add_extension(
        x509.SubjectAlternativeName([to_general_name(host)]), critical=False
    )
    write_pair(folder / "server.pem", Pair(builder.sign(root.key, hashes.SHA256()), root.key))
    return folder / "server.pem"


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_each_refusal_of_a_client_has_its_own_words_under_both_versions(
    authority: Authority, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    other = Authority(tmp_path / "other")
    good, gone = (
        member(authority, f"good-{newest.name}", tmp_path),
        member(authority, f"gone-{newest.name}", tmp_path),
    )
    authority.revoke(f"gone-{newest.name}")
    with serving(authority.server, authority, newest) as port:

        def answer(cert: Path | None, ca: Path = authority.ca) -> str:
            return tls.refusal(
                Address(
                    "localhost",
                    port,
                    tls=True,
                    ca=str(ca),
                    cert=None if cert is None else str(cert),
                )
            )

        assert answer(good) == ""
        assert answer(gone) == tls.REVOKED
        assert "does it want a certificate?" in answer(None) or "wants a certificate" in answer(
            None
        )
        assert "of an authority that the broker does not know" in answer(other.coordinator)
        assert "its certificate is not trusted" in answer(good, other.ca)
        assert "enrol this device (edge-agent join --token)" in answer(good, other.ca)
    other.close()


def test_a_name_that_the_certificate_does_not_hold_is_told_with_those_that_it_holds(
    authority: Authority, tmp_path: Path
) -> None:
    with serving(
        server(authority, tmp_path, timedelta(days=-1), timedelta(days=1), "broker.example"),
        authority,
    ) as port:
        said = tls.refusal(
            Address(
                "127.0.0.1", port, tls=True, ca=str(authority.ca), cert=str(authority.coordinator)
            )
        )
    assert (
        said
        == "its certificate is for broker.example, not for '127.0.0.1': use one of these, or add "
        "it (coordinator authority --host)"
    )


@pytest.mark.parametrize(
    ("begins", "ends", "what"), [(-2, -1, "has expired"), (1, 2, "not yet valid")]
)
def test_a_certificate_of_another_time_has_the_device_look_at_its_clock(
    authority: Authority, tmp_path: Path, begins: int, ends: int, what: str
) -> None:
    with serving(
        server(authority, tmp_path, timedelta(days=begins), timedelta(days=ends)), authority
    ) as port:
        said = tls.refusal(
            Address(
                "localhost", port, tls=True, ca=str(authority.ca), cert=str(authority.coordinator)
            )
        )
    assert what in said
    assert f"this device's clock says {datetime.now(UTC):%Y-%m-%d}" in said
    assert "start the coordinator anew" in said


def test_a_file_that_holds_no_key_is_named(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"expected a certificate and its key in .*ca.pem"):
        tls.context(Address("b", 1, tls=True, ca=str(authority.ca), cert=str(authority.ca)))


def test_a_client_id_is_known_to_the_keys_holder_alone_and_stays(
    authority: Authority, tmp_path: Path
) -> None:
    one, two = (
        Address("b", 1, tls=True, cert=str(member(authority, name, tmp_path)))
        for name in ("one", "two")
    )
    assert (
        tls.private_name(one, "r-a") == tls.private_name(one, "r-a") != tls.private_name(two, "r-a")
    )
    assert tls.private_name(Address("b", 1), "r-a") == "r-a"
