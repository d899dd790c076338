"""TLS of a link: failures are explained with a remedy."""

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

from coordinator.access.certificate_authority import Authority
from coordinator.access.certificate_files import (
    Pair,
    make_name,
    read_pair,
    to_general_name,
    write_pair,
)
from federated.errors import ConfigError
from federated.wire import tls
from federated.wire.mqtt_address import MqttAddress, parse_mqtt_address
from tests.support.certificate_authority import member


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    authority = Authority(tmp_path_factory.mktemp("pki"), ["broker.example"])
    yield authority
    authority.close()


@contextlib.contextmanager
def serving(
    pem: Path, authority: Authority, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[int]:
    """Run a server that requires certificates of an authority; the context value is its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = newest
    context.load_cert_chain(pem)
    context.load_verify_locations(authority.ca)
    context.load_verify_locations(authority.crl)
    context.verify_mode, context.verify_flags = (
        ssl.CERT_REQUIRED,
        ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
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
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def server(
    authority: Authority, folder: Path, begins: timedelta, ends: timedelta, host: str = "localhost"
) -> Path:
    """Return a server's certificate of the authority, valid from now + begins to now + ends."""
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
def test_each_rejection_of_a_client_is_explained_under_both_versions(
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
            return tls.find_refusal(
                MqttAddress(
                    "localhost",
                    port,
                    tls=True,
                    ca=str(ca),
                    cert=None if cert is None else str(cert),
                )
            )

        assert answer(good) == ""
        assert answer(gone) == tls.REVOKED
        assert "requires a certificate" in answer(None)
        assert "does not know the authority" in answer(other.coordinator)
        assert "its certificate is not trusted" in answer(good, other.ca)
        assert "enrol this device (edge-agent join --token)" in answer(good, other.ca)
    other.close()


def test_a_wrong_host_name_is_explained_with_the_names_in_the_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    with serving(
        server(authority, tmp_path, timedelta(days=-1), timedelta(days=1), "broker.example"),
        authority,
    ) as port:
        said = tls.find_refusal(
            MqttAddress(
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
def test_an_expired_or_future_certificate_is_explained_with_the_clock(
    authority: Authority, tmp_path: Path, begins: int, ends: int, what: str
) -> None:
    with serving(
        server(authority, tmp_path, timedelta(days=begins), timedelta(days=ends)), authority
    ) as port:
        said = tls.find_refusal(
            MqttAddress(
                "localhost", port, tls=True, ca=str(authority.ca), cert=str(authority.coordinator)
            )
        )
    assert what in said
    assert f"this device's clock says {datetime.now(UTC):%Y-%m-%d}" in said
    assert "restart the coordinator" in said


def test_a_file_without_a_key_is_an_error(authority: Authority) -> None:
    match = r"expected a certificate and its private key .* in .*ca.pem, found none"
    with pytest.raises(ConfigError, match=match):
        tls.make_context(
            MqttAddress("b", 1, tls=True, ca=str(authority.ca), cert=str(authority.ca))
        )


def test_a_client_id_depends_on_the_key_and_is_stable(authority: Authority, tmp_path: Path) -> None:
    one, two = (
        MqttAddress("b", 1, tls=True, cert=str(member(authority, name, tmp_path)))
        for name in ("one", "two")
    )
    assert (
        tls.make_private_name(one, "r-a")
        == tls.make_private_name(one, "r-a")
        != tls.make_private_name(two, "r-a")
    )
    assert tls.make_private_name(MqttAddress("b", 1), "r-a") == "r-a"


@pytest.mark.parametrize(("port", "chosen"), [(443, "mqtt"), (8883, None)])
def test_the_port_of_web_servers_is_asked_for_mqtt(
    authority: Authority, port: int, chosen: str | None
) -> None:
    address = parse_mqtt_address(f"mqtts://localhost:{port}?ca={authority.ca}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    context.set_alpn_protocols(["http/1.1", "mqtt"])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.make_context(address).wrap_bio(down, up, server_hostname="localhost")
    server = context.wrap_bio(up, down, server_side=True)
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert server.version() is not None
    assert server.selected_alpn_protocol() == chosen
