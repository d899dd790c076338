"""How a device gets its certificate: a key made here, a request signed by it, HTTPS to the
coordinator's authority. Needs `cryptography`.

Before anything is said, the authority's certificate is fetched and compared with the fingerprint in
the token; then only who has a certificate by that authority, for that host, is spoken to. The key
is written down before the token is used: where the answer is lost, asking again with the same key
brings the same certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_agent.access.credentials import About, Credentials, alone
from federated.errors import ConfigError, LinkError, StoreError
from federated.runtime import files
from federated.wire import tls
from federated.wire.address import Address
from federated.wire.enrolment_token import (
    AUTHORITY,
    ENROL,
    LARGEST,
    RENEW,
    Answer,
    Ask,
    Renewal,
    Token,
)

__all__ = ["due", "enrol", "left", "renew"]

TIMEOUT = 15.0  # seconds of one question
KEY = b"-----BEGIN PRIVATE KEY"


def enrol(token: Token, folder: Path) -> Credentials:
    """Gets a certificate for a token and keeps it in `folder`. Raises LinkError, saying what is
    wrong; nothing was trusted then.
    """
    office = Address(token.host, token.port, tls=True)
    authority = fetched(office, token)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with alone(folder):
            key = pending(folder / "key.pem")
            files.write(folder / "ca.pem", authority.encode())
            ask = Ask(token.secret.hex(), request(token.name, key))
            answer = asked(
                Address(token.host, token.port, tls=True, ca=str(folder / "ca.pem")), ENROL, ask
            )
            about = About(
                token.name,
                token.host,
                token.port,
                answer.broker,
                hashlib.sha256(token.secret).hexdigest(),
            )
            keep(made := about.at(folder), answer, key)
            files.write(folder / "about.json", msgspec.json.encode(about))
            (folder / "key.pem").unlink()
    except OSError as error:
        raise StoreError(
            f"{folder}: expected a folder for this device's certificate: {error.strerror or error}"
        ) from error
    return made


def renew(credentials: Credentials) -> None:
    """Puts another certificate, with a key of its own, in the old one's place. Raises LinkError,
    StoreError: the old one stays.
    """
    if left(credentials.pem) <= 0:
        ended = certificate(credentials.pem).not_valid_after_utc
        raise LinkError(
            f"this device's certificate ended at {ended:%Y-%m-%d %H:%M} UTC, and only "
            "one that is good can be renewed: if this device's clock is "
            f"right ({datetime.now(UTC):%Y-%m-%d %H:%M} UTC), ask for a token "
            f"(coordinator enroll {credentials.name})"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    answer = asked(credentials.office, RENEW, Renewal(request(credentials.name, key)))
    try:
        keep(credentials, answer, key)
    except OSError as error:
        raise StoreError(f"{credentials.pem}: {error}") from error


def due(pem: Path) -> bool:
    """Whether less than a third of a certificate's life is left."""
    found = certificate(pem)
    return left(pem) < (found.not_valid_after_utc - found.not_valid_before_utc).total_seconds() / 3


def left(pem: Path) -> float:
    """Seconds until a certificate ends, by this device's clock."""
    return (certificate(pem).not_valid_after_utc - datetime.now(UTC)).total_seconds()


def certificate(pem: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{pem}: expected a certificate in PEM: {error}") from error


def request(name: str, key: ec.EllipticCurvePrivateKey) -> str:
    """A request for a certificate of a name, signed by the key that it is for."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def pending(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key of an enrolment that was begun, or a new one, which is on the disk when this
    returns.
    """
    if path.exists():
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except ValueError:
            key = None
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    made = ec.generate_private_key(ec.SECP256R1())
    files.write(path, text_of(made))
    path.chmod(0o600)
    return made


def keep(credentials: Credentials, answer: Answer, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a certificate and its key down, once it is what was asked for. Raises LinkError."""
    try:
        made = x509.load_pem_x509_certificate(answer.certificate.encode())
        made.verify_directly_issued_by(certificate(credentials.ca))
        names = [
            str(part.value) for part in made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        if made.public_key() != key.public_key() or names != [credentials.name]:
            raise ValueError("it is of another key or name")
    except (ValueError, TypeError, InvalidSignature) as error:
        where = f"{credentials.host}:{credentials.port}"
        raise LinkError(
            f"{where}: expected a certificate for this device's key and name, found "
            f"another: {error}"
        ) from error
    # in a folder that nobody else may open
    files.write(credentials.pem, answer.certificate.encode() + text_of(key))
    credentials.pem.chmod(0o600)


def text_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# ---- speaking ------------------------------------------------------------------------------------


def fetched(office: Address, token: Token) -> str:
    """The authority's certificate (PEM), which is the token's: whoever hands it over. Raises
    LinkError.
    """
    unknown = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # nothing is said here, and what is heard is compared with the token
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE
    status, body = spoken(office, unknown, "GET", AUTHORITY, None)
    try:
        found = ssl.PEM_cert_to_DER_cert(body.decode("ascii").strip()) if status == 200 else b""
    except ValueError:
        found = b""
    shown = hashlib.sha256(found).digest() if found else b""
    if not hmac.compare_digest(shown, token.fingerprint):
        raise LinkError(
            f"{office.host}:{office.port} shows another authority than the token names "
            f"({shown.hex()[:16] or 'none'}... instead of "
            f"{token.fingerprint.hex()[:16]}...): the token is of another coordinator, "
            "or somebody is in between. Nothing was said to it"
        )
    return ssl.DER_cert_to_PEM_cert(
        found
        # what was compared and no more: behind a certificate's padding another one would go unread,
        # and
        # be trusted
    )


def asked(office: Address, path: str, question: Ask | Renewal) -> Answer:
    """What the authority answers. Raises LinkError with its words where it refuses."""
    status, body = spoken(office, tls.context(office), "POST", path, msgspec.json.encode(question))
    try:
        if status == 200:
            return msgspec.json.decode(body, type=Answer)
        why = str(json.loads(body)["error"])[:500]
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        why = f"an answer of status {status} that is none of an authority's"
    raise LinkError(f"the coordinator at {office.host}:{office.port} refuses: {why}")


def spoken(
    office: Address, context: ssl.SSLContext, method: str, path: str, body: bytes | None
) -> tuple[int, bytes]:
    """Status and body of an answer, never more of it than is allowed. Raises LinkError."""
    where = f"no enrolment at {office.host}:{office.port}"
    link = HTTPSConnection(office.host, office.port, timeout=TIMEOUT, context=context)
    try:
        link.request(
            method, path, body, {"content-type": "application/json", "connection": "close"}
        )
        answer = link.getresponse()
        return answer.status, answer.read(LARGEST)
    except ssl.SSLError as error:
        raise LinkError(f"{where}: {tls.explain(office, error)}") from error
    except socket.gaierror as error:
        raise LinkError(
            f"{where}: the name '{office.host}' does not resolve here: ask for a token "
            "with --host ADDRESS"
        ) from error
    except (OSError, HTTPException) as error:
        said = (
            "nobody listens there"
            if isinstance(error, ConnectionRefusedError)
            else str(error) or type(error).__name__
        )
        raise LinkError(
            f"{where}: {said}; does the coordinator run with --tls, and is there a "
            "firewall between?"
        ) from error
    finally:
        link.close()
