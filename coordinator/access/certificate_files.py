"""Read, write and check certificates, keys, revocation lists and signing requests, with the library
`cryptography`.

A certificate and its key lie in one file, so that both are always replaced together.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from federated.errors import ConfigError, Refused
from federated.runtime import atomic_files
from federated.system.file_modes import read_mode
from federated.system.users import find_user
from federated.wire import topics

__all__ = [
    "BACKDATED",
    "Pair",
    "check_private",
    "expires_soon",
    "hash_public_key",
    "is_fresh",
    "list_own_names",
    "make_key_usage",
    "make_name",
    "make_root",
    "normalise_hosts",
    "read_agent_name",
    "read_list",
    "read_name",
    "read_pair",
    "read_request",
    "read_server_names",
    "to_general_name",
    "to_pem",
    "write_pair",
]

ROOT_LIFE = timedelta(days=3650)
# for the authority and its lists: devices without a clock battery may be that far behind
BACKDATED = timedelta(days=1)
USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_key_usage(*uses: str) -> x509.KeyUsage:
    """Return the extension that allows these uses of a key and no others."""
    return x509.KeyUsage(
        **{use: use in uses for use in USES}, encipher_only=False, decipher_only=False
    )


def list_own_names() -> tuple[str, ...]:
    """Return the names of this machine and the addresses of its interfaces."""
    host = socket.gethostname()
    addresses = [
        a.address
        for found in psutil.net_if_addrs().values()
        for a in found
        if a.family in (socket.AF_INET, socket.AF_INET6)
    ]
    # link-local addresses carry a scope ("%eth0"), which certificates cannot hold
    plain = [address for address in addresses if "%" not in address]
    return tuple(
        dict.fromkeys(["localhost", "127.0.0.1", "::1", host, f"{host}.local", *sorted(plain)])
    )


def read_server_names(path: Path) -> tuple[str, ...]:
    """Return the names and addresses in a server's certificate."""
    found = (
        read_pair(path)
        .certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    return (
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    )


def read_name(path: Path) -> str:
    """Return the common name in a certificate of this authority."""
    subject = read_pair(path).certificate.subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


# ---- files ---------------------------------------------------------------------------------------


def check_private(path: Path) -> None:
    """Raise ConfigError if others than this user may open the path."""
    user, mode = path.stat().st_uid, read_mode(path)
    if user != find_user() or mode & 0o077:
        raise ConfigError(
            f"{path}: expected a {'folder' if path.is_dir() else 'file'} that only this "
            f"user may open, found mode {mode:04o} "
            f"of user {user}: chown it, and chmod go= {path}"
        )


def write_pair(path: Path, pair: Pair) -> None:
    """Write a certificate and its key."""
    form = serialization.PrivateFormat.PKCS8
    atomic_files.write(
        path,
        to_pem(pair.certificate)
        + pair.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()),
        mode=0o600,
    )


def read_pair(path: Path) -> Pair:
    """Read a certificate and its key. Raises ConfigError."""
    check_private(path)
    data = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(
            data[data.index(b"-----BEGIN PRIVATE KEY") :], None
        )
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("a key of another kind")
        return Pair(x509.load_pem_x509_certificate(data), key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: expected a certificate and its key in PEM: {error}") from error


def read_list(path: Path) -> x509.CertificateRevocationList:
    """Read a list of revoked certificates. Raises ConfigError."""
    try:
        return x509.load_pem_x509_crl(path.read_bytes())
    except ValueError as error:
        raise ConfigError(
            f"{path}: expected a list of revoked certificates in PEM: {error}"
        ) from error


def is_fresh(path: Path, now: datetime) -> bool:
    """Return True if a certificate exists and has more than a third of its life left."""
    if not path.exists():
        return False
    certificate = read_pair(path).certificate
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < end - (end - begin) / 3


def expires_soon(found: x509.CertificateRevocationList, now: datetime) -> bool:
    """Return True if a list has less than half of its life left. Brokers whose list has expired
    reject every client, so they must be given the next one in time.
    """
    end = found.next_update_utc
    return end is None or now > end - (end - found.last_update_utc) / 2


def to_pem(certificate: x509.Certificate) -> bytes:
    """Encode a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


# ---- names ---------------------------------------------------------------------------------------


def make_root() -> Pair:
    """Make the self-signed certificate and the key of a new authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = make_name(f"espalier {socket.gethostname()}"[:64])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + ROOT_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(make_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def make_name(name: str) -> x509.Name:
    """Return the X.509 name with this common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def to_general_name(host: str) -> x509.GeneralName:
    """Return a host as an X.509 general name: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def normalise_hosts(hosts: Iterable[str]) -> list[str]:
    """Return the hosts as certificates spell them, without duplicates. Raises ConfigError."""
    made = []
    for host in hosts:
        try:
            name = to_general_name(host)
            made.append(str(name.value))
            if isinstance(name, x509.DNSName) and (
                not host or any(not (c.isalnum() or c in "-.") for c in host)
            ):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"host: expected an ASCII host name or an IP address, found '{host[:80]}'"
            ) from None
    return list(dict.fromkeys(made))


def read_request(text: str) -> x509.CertificateSigningRequest:
    """Read a signing request that is signed by the key it names. Raises Refused."""
    try:
        request = x509.load_pem_x509_csr(text.encode())
        sound = request.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise Refused(f"expected a certificate request in PEM: {str(error)[:200]}") from None
    public = request.public_key()
    if (
        not sound
        or not isinstance(public, ec.EllipticCurvePublicKey)
        or not isinstance(public.curve, ec.SECP256R1)
    ):
        raise Refused("expected a request with a P-256 key, signed by that key")
    return request


def read_agent_name(request: x509.CertificateSigningRequest) -> str:
    """Return the agent's name in a request; the request's other attributes are ignored. Raises
    Refused.
    """
    found = [
        str(part.value) for part in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    if len(found) != 1 or not re.match(topics.AGENT, found[0]):
        raise Refused(
            "expected the agent's name in the request: 1 to 64 letters, digits, '_', '.' "
            "or '-', and not 'all'"
        )
    return found[0]


def hash_public_key(request: x509.CertificateSigningRequest) -> str:
    """Return the SHA-256 of the request's public key."""
    public = request.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(public).hexdigest()
