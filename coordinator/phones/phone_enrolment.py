"""Enrol phones and check their passwords. A browser can hold no client certificate of its own, so
the server holds each phone's key and certificate, in the folder of the authority:

    PKI/phones/NAME.pem     certificate and key of the phone

A phone's password is derived from its key, so that no further secret is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.access.certificate_authority import Authority
from coordinator.access.certificate_files import Pair, is_fresh, read_pair, write_pair
from coordinator.access.run_rights import list_excluded
from federated.certificate_request import sign_request
from federated.errors import Refused, StoreError, explain_os_errors
from federated.system.file_names import make_file_name
from federated.wire import topics
from federated.wire.enrolment_token import parse_token

__all__ = ["NONCE", "NO_RIGHT", "Phone", "PhoneEnrolment"]

FOLDER = "phones"
NONCE = 32  # bytes
# how long an answer may be repeated, from the start of its certificate, minutes before it was given
REPEATABLE = timedelta(hours=1)
# of the group of the curve P-256 (FIPS 186-5, SP 800-186)
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
NO_RIGHT = (
    "this phone has no right to this run; ask the operator of the coordinator for it (coordinator "
    "grant NAME --run RUN)"
)
AGAIN = "ask the operator of the coordinator for a new code (coordinator enroll NAME --phone)"


@dataclass(frozen=True)
class Phone:
    """A phone with the right password.

    name: of the agent.
    pem: file of its certificate and key.
    serial: of the certificate, hexadecimal.
    """

    name: str
    pem: Path
    serial: str


class PhoneEnrolment:
    """The phones that enrolled at an authority. Methods may be called from any thread; they raise
    StoreError if a file cannot be read or written.

    run: in which they take part.
    """

    def __init__(self, authority: Authority, run: str) -> None:
        """Create the folder of the phones' keys. Raises StoreError."""
        self.run = run
        self._authority, self._folder = authority, authority.folder / FOLDER
        with explain_os_errors(StoreError, f"cannot create the folder {self._folder}"):
            self._folder.mkdir(mode=0o700, exist_ok=True)

    def enrol(self, text: str, nonce: bytes, now: datetime | None = None) -> tuple[str, str]:
        """Enrol a phone with a token, which works once. Return its name and password, and again for
        the same token and nonce for a while, because the answer may have been lost.

        nonce: drawn by the phone. Raises UsageError for a text that is no token, Refused for one
        that is not valid.
        """
        token = parse_token(text, hide=False)
        if not hmac.compare_digest(token.fingerprint, self._authority.fingerprint):
            raise Refused("this code is of another coordinator")
        key = self._make_key(token.secret, nonce)
        pem = self._authority.enrol(token.secret, sign_request(token.name, key))
        certificate = x509.load_pem_x509_certificate(pem.encode())
        if (now or datetime.now(UTC)) - certificate.not_valid_before_utc > REPEATABLE:
            raise Refused("this code was already used; " + AGAIN)
        self._write(token.name, certificate, key)
        return token.name, derive_password(key)

    def admit(self, name: str, password: str) -> Phone:
        """Return the phone with this name and password, with a certificate that is renewed in time.
        Raises Refused.
        """
        path = self._locate(name) if re.match(topics.AGENT, name) else None
        if path is None or not path.is_file():
            raise Refused("unknown phone or wrong password; " + AGAIN)
        pair, now = read_pair(path), datetime.now(UTC)
        if not hmac.compare_digest(derive_password(pair.key).encode(), password.encode()):
            raise Refused("unknown phone or wrong password; " + AGAIN)
        if now > pair.certificate.not_valid_after_utc:
            raise Refused("the certificate of this phone has expired; " + AGAIN)
        known = self._authority.registry.find(f"{pair.certificate.serial_number:x}")
        if known is None or known.revoked is not None:
            raise Refused("this phone was revoked; " + AGAIN)
        if name in self.list_excluded():
            raise Refused(NO_RIGHT)
        if not is_fresh(path, now):
            shown = pair.certificate.public_bytes(serialization.Encoding.DER)
            # the same key, so that the password stays valid
            renewed = self._authority.renew(shown, sign_request(name, pair.key))
            certificate = x509.load_pem_x509_certificate(renewed.encode())
            pair = self._write(name, certificate, pair.key)
        return Phone(name, path, f"{pair.certificate.serial_number:x}")

    def list_revoked(self) -> frozenset[str]:
        """Return the serial numbers of revoked certificates."""
        return frozenset(serial for serial, _ in self._authority.registry.list_revocations())

    def list_excluded(self) -> frozenset[str]:
        """Return the names that may not take part in the run."""
        return list_excluded(self._authority.registry, self.run)

    def _make_key(self, secret: bytes, nonce: bytes) -> ec.EllipticCurvePrivateKey:
        """Return a key that only this authority can compute, always the same for a token and nonce
        (FIPS 186-5, A.2.1).
        """
        drawn = self._authority.derive(b"phone" + secret + nonce, 48)
        return ec.derive_private_key(int.from_bytes(drawn, "big") % (ORDER - 1) + 1, ec.SECP256R1())

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> Pair:
        pair = Pair(certificate, key)
        with explain_os_errors(StoreError, f"cannot write the key of '{name}'"):
            write_pair(self._locate(name), pair)
        return pair

    def _locate(self, name: str) -> Path:
        return self._folder / make_file_name(f"{name}.pem")


def derive_password(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the password of the phone with this key: 256 bits, hexadecimal."""
    number = key.private_numbers().private_value.to_bytes(32, "big")
    return hmac.new(number, b"espalier phone password", hashlib.sha256).hexdigest()
