"""The fleet's own certificate authority, in a folder that nobody else may look into.

    PKI/root.pem            the authority's certificate and key
        ca.pem              its certificate alone: what everybody trusts
        server.pem          of the broker and of enrolment, for all names of this machine, and its
        key
        coordinator.pem     of the coordinator, and its key
        crl.pem             what was revoked
        registry.sqlite     who was let in (coordinator.access.registry)

X.509 by the library `cryptography`: ECDSA over P-256 with SHA-256. Validity begins some minutes
ago, for devices whose clocks are slow.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.access.certificates import (
    BACKDATED,
    Pair,
    check_private,
    common,
    ending,
    general,
    key_of,
    lasting,
    name_of,
    own_names,
    pem,
    read,
    read_list,
    read_request,
    root,
    server_names,
    spelled,
    usage,
    write,
)
from coordinator.access.registry import Certificate, Registry
from coordinator.broker.mosquitto import COORDINATOR, Secured
from federated.errors import ConfigError, Refused
from federated.runtime import files
from federated.wire import topics
from federated.wire.enrolment_token import SECRET, Token

__all__ = ["LIFE", "Authority"]

OWN_LIFE, LIFE = timedelta(days=397), timedelta(days=90)  # of what is the coordinator's, of agents'
LIST_LIFE = timedelta(days=180)  # a broker that has no newer list by then lets nobody in
SLOW = timedelta(minutes=10)
MOST = 100  # good certificates of one name: answers get lost, but nobody is to fill the registry


class Authority:
    """The folder, opened; made where it is not there. Raises ConfigError for one that others may
    read, or that holds something else.
    """

    def __init__(self, folder: Path, hosts: Iterable[str] = ()) -> None:
        """hosts: names and addresses that the broker's certificate is to hold beside this machine's
        own; they are remembered.

        `renewed` says whether anything that a broker reads was made (again) just now.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"the authority's folder {folder} cannot be made: {error.strerror}; "
                "name another by --pki"
            ) from error
        check_private(folder)
        self.ca, self.server, self.coordinator, self.crl = (
            folder / f"{name}.pem" for name in ("ca", "server", "coordinator", "crl")
        )
        self.registry = Registry(folder / "registry.sqlite")
        with self.registry.alone():  # two commands may be the first at the same time
            if not (folder / "root.pem").exists():
                write(folder / "root.pem", root())
            self._root = read(folder / "root.pem")
            if not self.ca.exists() or self.ca.read_bytes() != pem(self._root.certificate):
                files.write(self.ca, pem(self._root.certificate))
            self._remember(hosts)
        self.renewed = self.tend()

    def close(self) -> None:
        self.registry.close()

    @property
    def fingerprint(self) -> bytes:
        """sha256 of the authority's certificate."""
        return self._root.certificate.fingerprint(hashes.SHA256())

    @property
    def secured(self) -> Secured:
        """What a broker needs of the folder."""
        return Secured(self.ca, self.server, self.crl, self.coordinator)

    # ---- what is the coordinator's ---------------------------------------------------------------

    def tend(self, now: datetime | None = None) -> bool:
        """Makes again what is missing, is soon over, or lacks a name of this machine; whether
        anything was.
        """
        now = datetime.now(UTC) if now is None else now
        with self.registry.alone():
            names = spelled([*own_names(), *self._hosts()])
            made = False
            if not lasting(self.server, now) or set(names) - set(server_names(self.server)):
                write(self.server, self._own("espalier", ExtendedKeyUsageOID.SERVER_AUTH, names))
                made = True
            if not lasting(self.coordinator, now):
                write(self.coordinator, self._own(COORDINATOR, ExtendedKeyUsageOID.CLIENT_AUTH, ()))
                made = True
            if not self.crl.exists() or ending(read_list(self.crl), now):
                self._write_list(now)
                made = True
        return made

    def add_hosts(self, hosts: Iterable[str]) -> None:
        """Puts more names into the broker's certificate. Raises ConfigError for one that is no
        host's.
        """
        with self.registry.alone():
            self._remember(hosts)
        self.tend()

    def _remember(self, hosts: Iterable[str]) -> None:
        spelled(hosts)
        self.registry.note("hosts", " ".join(dict.fromkeys([*self._hosts(), *hosts])))

    def _hosts(self) -> list[str]:
        return self.registry.noted("hosts").split()

    def _own(self, name: str, purpose: x509.ObjectIdentifier, hosts: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        return Pair(self._certify(name, key.public_key(), purpose, OWN_LIFE, hosts), key)

    # ---- agents ----------------------------------------------------------------------------------

    def invite(
        self, name: str, host: str, port: int, valid: float, now: float | None = None
    ) -> Token:
        """A token by which a device can enrol as `name` once, within `valid` seconds, at host:port.
        Raises UsageError, ConfigError.
        """
        topics.command("any", name)
        now = time.time() if now is None else now
        self.add_hosts([host])
        token = Token(name, host, port, secrets.token_bytes(SECRET), self.fingerprint)
        with self.registry.alone():
            if (known := self.registry.good(name, now)) is not None:
                raise ConfigError(
                    f"'{name}' has a certificate until "
                    f"{time.strftime('%Y-%m-%d', time.gmtime(known.ends))}, and renews "
                    "it itself; if the device is "
                    f"lost or was set up anew, revoke that first: coordinator revoke {name}"
                )
            self.registry.promise(token.secret, name, now + valid)
        return token

    def enrol(self, secret: bytes, request: str, now: float | None = None) -> str:
        """The certificate (PEM) of who knows a token's secret. Raises Refused."""
        asked, now = read_request(request), time.time() if now is None else now
        name = name_of(asked)
        key = key_of(asked)
        with self.registry.alone():
            before = self.registry.claim(secret, name, key, now)
            if before is not None:
                if before.revoked is not None:
                    raise Refused(f"the certificate of '{name}' was revoked")
                return before.pem
            made = self._admit(name, asked)
            self.registry.fulfil(secret, made.serial)
        return made.pem

    def renew(
        self, shown: bytes, request: str, now: float | None = None, life: timedelta = LIFE
    ) -> str:
        """Another certificate (PEM) for who showed one (DER) that TLS found to be ours. Raises
        Refused.
        """
        asked, now = read_request(request), time.time() if now is None else now
        with self.registry.alone():
            known = self.registry.find(f"{x509.load_der_x509_certificate(shown).serial_number:x}")
            if known is None:
                raise Refused("this certificate is none of an agent that was enrolled here")
            if known.revoked is not None:
                raise Refused(f"the certificate of '{known.name}' was revoked: it is not renewed")
            if name_of(asked) != known.name:
                raise Refused(
                    f"the certificate is of '{known.name}', the new one is asked for "
                    f"'{name_of(asked)}'"
                )
            if self.registry.count(known.name, now) >= MOST:
                raise Refused(
                    f"'{known.name}' has {MOST} certificates that are good: no more "
                    f"before one of them ends, or coordinator revoke {known.name}"
                )
            return self._admit(known.name, asked, life).pem

    def revoke(self, name: str, now: float | None = None) -> int:
        """Revokes every certificate of an agent, and publishes the list anew; how many they
        were.
        """
        with self.registry.alone():
            count = self.registry.revoke(name, time.time() if now is None else now)
            self._write_list(datetime.now(UTC))
        return count

    def _admit(
        self, name: str, asked: x509.CertificateSigningRequest, life: timedelta = LIFE
    ) -> Certificate:
        public = asked.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        made = self._certify(name, public, ExtendedKeyUsageOID.CLIENT_AUTH, life)
        kept = Certificate(
            f"{made.serial_number:x}",
            name,
            made.not_valid_after_utc.timestamp(),
            None,
            pem(made).decode(),
        )
        self.registry.add(kept)
        return kept

    def _certify(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        purpose: x509.ObjectIdentifier,
        life: timedelta,
        hosts: Sequence[str] = (),
    ) -> x509.Certificate:
        now, issuer = datetime.now(UTC), self._root.certificate
        builder = (
            x509.CertificateBuilder()
            .subject_name(common(name))
            .issuer_name(issuer.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - SLOW, issuer.not_valid_before_utc))
            .not_valid_after(min(now + life, issuer.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._root.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([general(host) for host in hosts]), critical=False
            )
        return builder.sign(self._root.key, hashes.SHA256())

    def _write_list(self, now: datetime) -> None:
        builder = x509.CertificateRevocationListBuilder().issuer_name(
            self._root.certificate.subject
        )
        builder = builder.last_update(now - BACKDATED).next_update(now + LIST_LIFE)
        builder = builder.add_extension(x509.CRLNumber(time.time_ns()), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._root.key.public_key()),
            critical=False,
        )
        for one in self.registry.revoked(now.timestamp()):
            row = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
            builder = builder.add_revoked_certificate(
                row.revocation_date(datetime.fromtimestamp(one.revoked or 0, UTC)).build()
            )
        files.write(
            self.crl,
            builder.sign(self._root.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )
