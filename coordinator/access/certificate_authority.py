"""Issue, renew and revoke certificates for a fleet. The certificate authority is a folder that only
its owner may read:

    PKI/root.pem            certificate and key of the authority
        ca.pem              certificate of the authority alone, which every client trusts
        server.pem          certificate and key of the broker and the enrolment server, valid for
                            all names of this machine
        coordinator.pem     certificate and key of the coordinator
        crl.pem             list of revoked certificates
        registry.sqlite     tokens and issued certificates (coordinator.access.certificate_registry)

X.509 with the library `cryptography`: ECDSA over P-256 with SHA-256. Certificates are backdated by
some minutes, for devices whose clocks are slow.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.access.certificate_files import (
    BACKDATED,
    Pair,
    check_private,
    expires_soon,
    hash_public_key,
    is_fresh,
    list_own_names,
    make_key_usage,
    make_name,
    make_root,
    normalise_hosts,
    read_agent_name,
    read_list,
    read_name,
    read_pair,
    read_request,
    read_server_names,
    to_general_name,
    to_pem,
    write_pair,
)
from coordinator.access.certificate_registry import REGISTRY, Certificate, Registry
from coordinator.access.enrolment_list import Device
from coordinator.access.outside_authority import OutsideAuthority
from coordinator.access.run_rights import limit_to_runs
from coordinator.audit_log import Actor
from coordinator.broker.mosquitto_config import COORDINATOR, Rights, TlsFiles
from federated.errors import ConfigError, Refused, StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.wire import topics
from federated.wire.enrolment_token import SECRET, Token

__all__ = ["LIFE", "Authority"]

OWN_LIFE, LIFE = timedelta(days=397), timedelta(days=90)  # coordinator and server; agents
SKIP = "; to enrol only the other devices of the list, add --skip-enrolled"
LIST_LIFE = timedelta(days=180)  # a broker rejects every client once its list has expired
SLOW = timedelta(minutes=10)
# valid certificates per name: a renewal whose answer is lost leaves an unused certificate behind,
# and no agent may fill the registry
MOST = 100
USER = "coordinator"  # name of the fact with the name in the coordinator's certificate


class Authority:
    """An open authority; creates the folder if it is missing.

    Raises ConfigError for a folder that others may read, or that holds something else.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Iterable[str] = (),
        *,
        renew: bool = True,
        outside: OutsideAuthority | None = None,
    ) -> None:
        """Open the authority.

        hosts: names and addresses to put into the broker's certificate, beside those of this
            machine; they are remembered.
        renew: renew the authority's own certificates and list where needed.
        outside: another authority, which issues the devices' certificates.
        `renewed` tells whether a file that the broker reads was written.
        """
        self.folder, self.outside = folder, outside
        problem = f"cannot create the authority's folder {folder}"
        remedy = "choose another with --pki or the setting broker.pki"
        with explain_os_errors(StoreError, problem, remedy=remedy):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_private(folder)
        self.ca, self.server, self.coordinator, self.crl = (
            folder / f"{name}.pem" for name in ("ca", "server", "coordinator", "crl")
        )
        self.registry = Registry(folder / REGISTRY)
        with self.registry.transaction():  # two commands may create the authority at the same time
            if not (folder / "root.pem").exists():
                write_pair(folder / "root.pem", make_root())
            self._root = read_pair(folder / "root.pem")
            if not self.ca.exists() or self.ca.read_bytes() != to_pem(self._root.certificate):
                atomic_files.write(self.ca, to_pem(self._root.certificate))
            self._remember(hosts)
            if outside is not None and not self.registry.get_fact(USER):
                # Not to be guessed: the other authority might issue a certificate for any name.
                self.registry.set_fact(USER, f"coordinator-{secrets.token_hex(16)}@espalier")
        self.renewed = renew and self.renew_own()

    def close(self) -> None:
        self.registry.close()

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the authority's certificate."""
        return self._root.certificate.fingerprint(hashes.SHA256())

    def derive(self, purpose: bytes, size: int) -> bytes:
        """Return bytes that only this authority can compute, always the same for a purpose."""
        number = self._root.key.private_numbers().private_value.to_bytes(32, "big")
        return HKDF(hashes.SHA256(), size, salt=None, info=b"espalier " + purpose).derive(number)

    @property
    def tls_files(self) -> TlsFiles:
        """The files of the folder that a broker needs."""
        files = TlsFiles(self.ca, self.server, self.crl, self.coordinator, self.user)
        if self.outside is None:
            return files
        rights = Rights(self.registry.list_barred(), names=self.registry.list_names())
        return replace(files, outside=self.outside.served, rights=rights)

    @property
    def user(self) -> str:
        """The name in the coordinator's certificate."""
        return self.registry.get_fact(USER) or COORDINATOR

    # ---- the coordinator's own certificates ------------------------------------------------------

    def renew_own(self, now: datetime | None = None) -> bool:
        """Renew the certificates and the list that are missing, expire soon, or lack a name of this
        machine. Return True if any was renewed.
        """
        now = datetime.now(UTC) if now is None else now
        with self.registry.transaction():
            names = normalise_hosts([*list_own_names(), *self._hosts()])
            made = False
            if not is_fresh(self.server, now) or set(names) - set(read_server_names(self.server)):
                write_pair(
                    self.server, self._own("espalier", ExtendedKeyUsageOID.SERVER_AUTH, names)
                )
                made = True
            if not is_fresh(self.coordinator, now) or read_name(self.coordinator) != self.user:
                write_pair(
                    self.coordinator, self._own(self.user, ExtendedKeyUsageOID.CLIENT_AUTH, ())
                )
                made = True
            if not self.crl.exists() or expires_soon(read_list(self.crl), now):
                self._write_list(now)
                made = True
        return made

    def add_hosts(self, hosts: Iterable[str]) -> None:
        """Add names to the broker's certificate. Raises ConfigError for an invalid host."""
        with self.registry.transaction():
            self._remember(hosts)
        self.renew_own()

    def _remember(self, hosts: Iterable[str]) -> None:
        normalise_hosts(hosts)
        self.registry.set_fact("hosts", " ".join(dict.fromkeys([*self._hosts(), *hosts])))

    def _hosts(self) -> list[str]:
        return self.registry.get_fact("hosts").split()

    def _own(self, name: str, purpose: x509.ObjectIdentifier, hosts: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        return Pair(self._certify(name, key.public_key(), purpose, OWN_LIFE, hosts), key)

    # ---- agents ----------------------------------------------------------------------------------

    def invite(
        self, name: str, host: str, port: int, valid: float, now: float | None = None
    ) -> Token:
        """Return a token with which a device can enrol as `name` once, within `valid` seconds, at
        host:port. Raises UsageError, ConfigError.
        """
        (token,) = made = self.make_tokens([device := Device(name, valid)], host, port)
        self.add_tokens([device], made, now)
        return token

    def make_tokens(self, devices: Sequence[Device], host: str, port: int) -> list[Token]:
        """Return a token for each device, to enrol at host:port once it is added. Raises
        UsageError, ConfigError.
        """
        self.add_hosts([host])
        for one in devices:
            topics.command("any", one.name)  # checks the name
        return [
            Token(one.name, host, port, secrets.token_bytes(SECRET), self.fingerprint)
            for one in devices
        ]

    def add_tokens(
        self,
        devices: Sequence[Device],
        tokens: Sequence[Token],
        now: float | None = None,
        by: Actor | None = None,
    ) -> None:
        """Let devices enrol with their tokens from now on, all of them or none. Raises ConfigError
        for a device that has a certificate.

        by: who asks; None: the user of this process.
        """
        now = time.time() if now is None else now
        with self.registry.transaction():
            for one, token in zip(devices, tokens, strict=True):
                self.check_new(one, now, SKIP)
                self.registry.add_token(token.secret, one.name, now + one.valid)
            self.registry.record(by, "enroll", [one.name for one in devices])
            self.place(devices, by)

    def check_new(self, device: Device, now: float, remedy: str = "") -> None:
        """Raise ConfigError for a device that has a certificate. remedy: another, for a list."""
        if known := self.registry.list_valid(device.name, now):
            ends = time.strftime("%Y-%m-%d", time.gmtime(known[-1].ends))
            place = f"{device.source}: expected a new device, found one: " if device.source else ""
            raise ConfigError(
                f"{place}'{device.name}' already has a certificate, valid until {ends}, and "
                "renews it by itself; if the device was lost or set up again, revoke the "
                f"certificate first: coordinator revoke {device.name}"
                f"{remedy if device.source else ''}"
            )

    def place(self, devices: Sequence[Device], by: Actor | None) -> None:
        """Set the groups and runs of devices; within `Registry.transaction`. by: who asks."""
        for one in devices:
            if one.groups:
                self.registry.set_groups(one.name, one.groups)
            if one.runs:
                limit_to_runs(self.registry, one.name, one.runs)
        for run in sorted({run for one in devices for run in one.runs}):
            names = [one.name for one in devices if run in one.runs]
            self.registry.record(by, f"grant run {run}", names)
        for group in sorted({group for one in devices for group in one.groups}):
            names = [one.name for one in devices if group in one.groups]
            self.registry.record(by, f"add to {group}", names)

    def enrol(
        self, secret: bytes, request: str, now: float | None = None, life: timedelta = LIFE
    ) -> str:
        """Return a certificate (PEM) for the holder of a token's secret. Raises Refused."""
        asked, now = read_request(request), time.time() if now is None else now
        name = read_agent_name(asked)
        key = hash_public_key(asked)
        with self.registry.transaction():
            before = self.registry.claim_token(secret, name, key, now)
            if before is not None:
                if before.revoked is not None:
                    raise Refused(f"the certificate of '{name}' was revoked")
                return before.pem
            self.refuse_second(name, now)  # that it claimed meanwhile
            made = self.admit(name, asked, life)
            self.registry.complete_token(secret, made.serial)
        return made.pem

    def renew(
        self, shown: bytes, request: str, now: float | None = None, life: timedelta = LIFE
    ) -> str:
        """Return a new certificate (PEM) for the holder of a valid one. Raises Refused.

        shown: the certificate (DER) of the client, which TLS has verified to be from this
            authority.
        """
        asked, now = read_request(request), time.time() if now is None else now
        with self.registry.transaction():
            known = self.registry.find(f"{x509.load_der_x509_certificate(shown).serial_number:x}")
            if known is None:
                raise Refused("this certificate does not belong to an agent enrolled here")
            if known.revoked is not None:
                raise Refused(
                    f"the certificate of '{known.name}' was revoked; it cannot be renewed"
                )
            if read_agent_name(asked) != known.name:
                raise Refused(
                    f"the certificate belongs to '{known.name}', but the request is for "
                    f"'{read_agent_name(asked)}'"
                )
            if len(self.registry.list_valid(known.name, now)) >= MOST:
                raise Refused(
                    f"'{known.name}' already has {MOST} valid certificates: wait until one "
                    f"expires, or run coordinator revoke {known.name}"
                )
            return self.admit(known.name, asked, life).pem

    def revoke(self, name: str, now: float | None = None) -> int:
        """Revoke every certificate of an agent and publish the new list. Return how many
        certificates were valid.
        """
        return self.revoke_all([name], now)[name]

    def revoke_all(
        self, names: Sequence[str], now: float | None = None, by: Actor | None = None
    ) -> dict[str, int]:
        """Revoke agents as `revoke` does, with one new list. Return the counts by agent.

        by: who asks; None: the user of this process.
        """
        at = time.time() if now is None else now
        with self.registry.transaction():
            counts = {name: self.registry.revoke(name, at) for name in names}
            self.registry.record(by, "revoke", names)
            self._write_list(datetime.now(UTC))
        return counts

    def refuse_second(self, name: str, now: float) -> None:
        """Raise Refused if another device may have a certificate of this name."""
        if self.registry.list_valid(name, now):
            raise Refused(
                f"'{name}' already has a certificate: revoke it before another device enrols "
                f"(coordinator revoke {name})"
            )

    def admit(
        self, name: str, asked: x509.CertificateSigningRequest, life: timedelta = LIFE
    ) -> Certificate:
        """Return a new certificate for an agent and the key of a request; within
        `Registry.transaction`.
        """
        public = asked.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        made = self._certify(name, public, ExtendedKeyUsageOID.CLIENT_AUTH, life)
        kept = Certificate(
            f"{made.serial_number:x}",
            name,
            made.not_valid_after_utc.timestamp(),
            None,
            to_pem(made).decode(),
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
            .subject_name(make_name(name))
            .issuer_name(issuer.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - SLOW, issuer.not_valid_before_utc))
            .not_valid_after(min(now + life, issuer.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(make_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._root.key.public_key()),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([to_general_name(host) for host in hosts]),
                critical=False,
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
        for one in self.registry.list_revoked(now.timestamp()):
            row = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
            builder = builder.add_revoked_certificate(
                row.revocation_date(datetime.fromtimestamp(one.revoked or 0, UTC)).build()
            )
        atomic_files.write(
            self.crl,
            builder.sign(self._root.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )
