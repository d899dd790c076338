"""A company's certificate authority: a root, and an intermediate authority that issues certificates
and lists of revoked ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Company"]

Key = ec.EllipticCurvePrivateKey
LIFE = timedelta(days=30)


class Company:
    """The authority and its files.

    folder: of the files. ca: certificates of the root and the intermediate. crl: the lists of both.
    numbered: whether the lists have numbers, and all the same begin; else the begins differ.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._began = datetime.now(UTC) - LIFE
        self.folder, self.ca, self.crl = folder, folder / "ca.pem", folder / "crl.pem"
        self._root_key, self._key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root = name("root"), self._root_key
        self._root = sign(root[0], self._root_key.public_key(), root, ca=True)
        self._own = sign(name("devices"), self._key.public_key(), root, ca=True)
        self.ca.write_bytes(to_pem(self._own) + to_pem(self._root))
        self._revoked: list[int] = []
        self.numbered, self._written = False, 0
        self.write_lists()

    def issue(self, common: str, hosts: Sequence[str] = (), file: str = "") -> Path:
        """Issue a certificate; return the file with it, the chain, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = sign(name(common), key.public_key(), (self._own.subject, self._key), hosts=hosts)
        path = self.folder / f"{file or common}.pem"
        content = to_pem(made) + to_pem(self._own) + key.private_bytes(*ENCODING)
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)
        return path

    def certify(self, request: x509.CertificateSigningRequest) -> x509.Certificate:
        """Issue the certificate that a device requests."""
        return sign(request.subject, request.public_key(), (self._own.subject, self._key))

    def revoke(self, path: Path) -> None:
        """Revoke the certificate in a file, and publish the lists."""
        self._revoked.append(x509.load_pem_x509_certificate(path.read_bytes()).serial_number)
        self.write_lists()

    def write_lists(self, life: timedelta = LIFE) -> None:
        lists = (
            self._sign_list(self._own.subject, self._key, self._revoked, life),
            self._sign_list(self._root.subject, self._root_key, [], life),
        )
        part = self.crl.with_suffix(".part")
        part.write_bytes(b"".join(lists))
        part.replace(self.crl)

    def _sign_list(self, issuer: x509.Name, key: Key, serials: list[int], life: timedelta) -> bytes:
        now = datetime.now(UTC)
        self._written += 1
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer)
        if self.numbered:
            builder = builder.add_extension(x509.CRLNumber(self._written), critical=False)
        age = timedelta() if self.numbered else timedelta(seconds=self._written)
        builder = builder.last_update(self._began + age).next_update(now + life)
        for serial in serials:
            row = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(row.build())
        made = builder.sign(key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)


ENCODING = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


def name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Company"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def sign(
    subject: x509.Name,
    key: CertificatePublicKeyTypes,
    issuer: tuple[x509.Name, Key],
    *,
    ca: bool = False,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0])
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if hosts:
        names = [x509.DNSName(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if not ca:
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    return builder.sign(issuer[1], hashes.SHA256())
