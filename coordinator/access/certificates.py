"""Certificates, their keys and lists as files, and what a request for one must be: functions over
the library `cryptography`.

A certificate of ours and its key lie in one file, so that both are always replaced together.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
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
from federated.runtime import files
from federated.wire import topics

__all__ = [
    "BACKDATED",
    "Pair",
    "check_private",
    "common",
    "ending",
    "general",
    "key_of",
    "lasting",
    "name_of",
    "own_names",
    "pem",
    "read",
    "read_list",
    "read_request",
    "root",
    "server_names",
    "spelled",
    "usage",
    "write",
]

ROOT_LIFE = timedelta(days=3650)
# of the authority and its lists: devices without a clock's battery may be that far behind
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
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def usage(*uses: str) -> x509.KeyUsage:
    """What a key is for, and for nothing else."""
    return x509.KeyUsage(
        **{use: use in uses for use in USES}, encipher_only=False, decipher_only=False
    )


def own_names() -> tuple[str, ...]:
    """What others may call this machine: its names and the addresses of its interfaces."""
    host = socket.gethostname()
    addresses = [
        a.address
        for found in psutil.net_if_addrs().values()
        for a in found
        if a.family in (socket.AF_INET, socket.AF_INET6)
    ]
    # of a link alone, and in no certificate's form
    lasting = [address for address in addresses if "%" not in address]
    return tuple(
        dict.fromkeys(["localhost", "127.0.0.1", "::1", host, f"{host}.local", *sorted(lasting)])
    )


def server_names(path: Path) -> tuple[str, ...]:
    """The names and addresses in a certificate of a server."""
    found = (
        read(path).certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    )
    return (
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    )


# ---- files ---------------------------------------------------------------------------------------


def check_private(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path}: expected a {'folder' if path.is_dir() else 'file'} that only this "
            f"user may open, found mode {stat.S_IMODE(found.st_mode):04o} "
            f"of user {found.st_uid}: chown it, and chmod go= {path}"
        )


def write(path: Path, pair: Pair) -> None:
    """The folder is closed to others, so that nobody sees the key before its own mode is set."""
    form = serialization.PrivateFormat.PKCS8
    files.write(
        path,
        pem(pair.certificate)
        + pair.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()),
    )
    path.chmod(0o600)


def read(path: Path) -> Pair:
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
    try:
        return x509.load_pem_x509_crl(path.read_bytes())
    except ValueError as error:
        raise ConfigError(
            f"{path}: expected a list of revoked certificates in PEM: {error}"
        ) from error


def lasting(path: Path, now: datetime) -> bool:
    """Whether a certificate is there and has more than a third of its life left."""
    if not path.exists():
        return False
    certificate = read(path).certificate
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < end - (end - begin) / 3


def ending(found: x509.CertificateRevocationList, now: datetime) -> bool:
    """Whether a list has less than half of its life left: a broker that is given no newer one in
    time lets nobody in.
    """
    end = found.next_update_utc
    return end is None or now > end - (end - found.last_update_utc) / 2


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# ---- names ---------------------------------------------------------------------------------------


def root() -> Pair:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = common(f"espalier {socket.gethostname()}"[:64])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + ROOT_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def common(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def spelled(hosts: Iterable[str]) -> list[str]:
    """As certificates spell them, each once. Raises ConfigError."""
    made = []
    for host in hosts:
        try:
            name = general(host)
            made.append(str(name.value))
            if isinstance(name, x509.DNSName) and (
                not host or any(not (c.isalnum() or c in "-.") for c in host)
            ):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"--host: expected a host's name in ASCII or an IP address, found '{host[:80]}'"
            ) from None
    return list(dict.fromkeys(made))


def read_request(text: str) -> x509.CertificateSigningRequest:
    """A request whose sender has the key that it names. Raises Refused."""
    try:
        request = x509.load_pem_x509_csr(text.encode())
        sound = request.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise Refused(f"expected a request for a certificate in PEM: {str(error)[:200]}") from None
    public = request.public_key()
    if (
        not sound
        or not isinstance(public, ec.EllipticCurvePublicKey)
        or not isinstance(public.curve, ec.SECP256R1)
    ):
        raise Refused("expected a request that its own key signed, of the curve P-256")
    return request


def name_of(request: x509.CertificateSigningRequest) -> str:
    """The agent's name in a request; everything else that it may ask for is ignored. Raises
    Refused.
    """
    found = [
        str(part.value) for part in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    if len(found) != 1 or not re.match(topics.AGENT, found[0]):
        raise Refused(
            "expected an agent's name in the request: 1 to 64 letters, digits, '_', '.' "
            "or '-', and not 'all'"
        )
    return found[0]


def key_of(request: x509.CertificateSigningRequest) -> str:
    """A digest of the public key."""
    public = request.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    made = hashes.Hash(hashes.SHA256())
    made.update(public)
    return made.finalize().hex()
