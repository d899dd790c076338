"""Request and renew this device's certificate over HTTPS. Needs `cryptography`.

The device makes its key here and signs a request with it. Before it sends anything, it fetches the
authority's certificate and compares it with the fingerprint in the token; afterwards it talks only
to a server whose certificate that authority issued for that host. The key is on disk before the
token is used: if the answer is lost, a second request with the same key returns the same
certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import ssl
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_agent.access.agent_name import read_serial
from edge_agent.access.enrolment_files import Credentials, Enrolment, hold_lock
from federated.certificate_request import sign_request
from federated.errors import ConfigError, LinkError, StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.connection_deadline import ConnectionDeadline
from federated.system.proxies import ProxyError, find_proxy, open_connection
from federated.wire import tls, topics
from federated.wire.enrolment_token import (
    AUTHORITY,
    CLAIM,
    ENROL,
    LARGEST,
    RENEW,
    Answer,
    Ask,
    Renewal,
    Token,
)
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "count_seconds_left",
    "encode_key",
    "enrol",
    "find_agent_name",
    "is_due",
    "load_certificate",
    "load_or_create_key",
    "renew",
]

TIMEOUT = 15.0  # seconds per request


def enrol(token: Token, folder: Path) -> Credentials:
    """Obtain a certificate with a token or a claim, and save it in `folder`. Raises LinkError,
    StoreError, and UsageError for a claim if this device has no serial number.
    """
    asked = token.serial or read_serial() if token.claim else token.name
    authority = fetch_authority(MqttAddress(token.host, token.port, tls=True), token)
    with explain_os_errors(
        StoreError, f"{folder}: expected a folder for this device's certificate"
    ):
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with hold_lock(folder):
            key = load_or_create_key(folder / "key.pem")
            atomic_files.write(folder / "ca.pem", authority.encode())
            answer = post(
                MqttAddress(token.host, token.port, tls=True, ca=str(folder / "ca.pem")),
                CLAIM if token.claim else ENROL,
                Ask(token.secret.hex(), sign_request(asked, key)),
            )
            digest = hashlib.sha256(token.secret).hexdigest()
            # the operator's list names the device that claims
            name = read_name(answer) if token.claim else token.name
            enrolment = Enrolment(name, token.host, token.port, answer.broker, digest)
            credentials = Credentials(**msgspec.structs.asdict(enrolment), folder=folder)
            save_certificate(credentials, answer, key)
            atomic_files.write(folder / "about.json", msgspec.json.encode(enrolment))
            (folder / "key.pem").unlink()
    return credentials


def renew(credentials: Credentials) -> None:
    """Replace a certificate with one for a new key. On LinkError and StoreError the old one
    stays.
    """
    if count_seconds_left(credentials.pem) <= 0:
        expiry = load_certificate(credentials.pem).not_valid_after_utc
        raise LinkError(
            f"this device's certificate expired at {expiry:%Y-%m-%d %H:%M} UTC and can no longer "
            f"be renewed: if this device's clock is right ({datetime.now(UTC):%Y-%m-%d %H:%M} "
            f"UTC), request a new token (coordinator enroll {credentials.name})"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    request = Renewal(sign_request(credentials.name, key))
    answer = post(credentials.authority_address, RENEW, request)
    try:
        save_certificate(credentials, answer, key)
    except OSError as error:
        raise StoreError(f"{credentials.pem}: {error}") from error


def is_due(pem: Path) -> bool:
    """Return True if less than a third of a certificate's life is left."""
    found = load_certificate(pem)
    life = (found.not_valid_after_utc - found.not_valid_before_utc).total_seconds()
    return count_seconds_left(pem) < life / 3


def count_seconds_left(pem: Path) -> float:
    """Return the seconds until a certificate expires, by this device's clock."""
    return (load_certificate(pem).not_valid_after_utc - datetime.now(UTC)).total_seconds()


def load_certificate(pem: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{pem}: expected a certificate in PEM: {error}") from error


def load_or_create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of an interrupted enrolment, or a new one that is already on disk."""
    if path.exists():
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except ValueError:
            key = None
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    new = ec.generate_private_key(ec.SECP256R1())
    atomic_files.write(path, encode_key(new), mode=0o600)
    return new


def save_certificate(
    credentials: Credentials, answer: Answer, key: ec.EllipticCurvePrivateKey
) -> None:
    """Check that a certificate is for this key and name, then write both. Raises LinkError."""
    try:
        new = x509.load_pem_x509_certificate(answer.certificate.encode())
        new.verify_directly_issued_by(load_certificate(credentials.ca))
        names = [
            str(part.value) for part in new.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        if new.public_key() != key.public_key() or names != [credentials.name]:
            raise ValueError("it has another key or name")
    except (ValueError, TypeError, InvalidSignature) as error:
        raise LinkError(
            f"{credentials.host}:{credentials.port}: expected a certificate for this device's key "
            f"and name, found another: {error}"
        ) from error
    both = answer.certificate.encode() + encode_key(key)
    atomic_files.write(credentials.pem, both, mode=0o600)


def read_name(answer: Answer) -> str:
    """Return the agent's name in an answer's certificate; "" if it has none."""
    try:
        return find_agent_name(x509.load_pem_x509_certificate(answer.certificate.encode()).subject)
    except ValueError:
        return ""


def find_agent_name(found: x509.Name) -> str:
    """Return the common name; "" if it is not the valid name of an agent."""
    names = [str(part.value) for part in found.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return names[0] if len(names) == 1 and re.match(topics.AGENT, names[0]) else ""


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# ---- HTTPS ---------------------------------------------------------------------------------------


def fetch_authority(address: MqttAddress, token: Token) -> str:
    """Fetch the authority's certificate (PEM) from any server, and check it against the token.
    Raises LinkError.
    """
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # nothing secret is sent here, and the answer is compared with the token
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    status, body = send_request(address, unverified, "GET", AUTHORITY, None)
    try:
        found = ssl.PEM_cert_to_DER_cert(body.decode("ascii").strip()) if status == 200 else b""
    except ValueError:
        found = b""
    fingerprint = hashlib.sha256(found).digest() if found else b""
    if not hmac.compare_digest(fingerprint, token.fingerprint):
        raise LinkError(
            f"{address.host}:{address.port} shows another authority than the token names "
            f"({fingerprint.hex()[:16] or 'none'}... instead of "
            f"{token.fingerprint.hex()[:16]}...): either the token is from another coordinator, "
            "or someone intercepts the connection. Nothing was sent"
        )
    # Return only the certificate that was compared: text after its padding could hold a second one,
    # which would be trusted without a comparison.
    return ssl.DER_cert_to_PEM_cert(found)


def post(address: MqttAddress, path: str, request: Ask | Renewal) -> Answer:
    """Send a request to the authority and return its answer. Raises LinkError with the reason for a
    refusal.
    """
    context = tls.make_context(address)
    status, body = send_request(address, context, "POST", path, msgspec.json.encode(request))
    try:
        if status == 200:
            return msgspec.json.decode(body, type=Answer)
        reason = str(json.loads(body)["error"])[:500]
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        reason = f"unexpected answer with status {status}"
    raise LinkError(f"the coordinator at {address.host}:{address.port} refused: {reason}")


def send_request(
    address: MqttAddress, context: ssl.SSLContext, method: str, path: str, body: bytes | None
) -> tuple[int, bytes]:
    """Return the status and the body of an answer; read at most LARGEST bytes.

    Raises LinkError.
    """
    problem = f"cannot enrol at {address.host}:{address.port}"
    link = HTTPSConnection(address.host, address.port, context=context)
    headers = {"content-type": "application/json", "connection": "close"}
    try:
        with ConnectionDeadline(TIMEOUT) as deadline:
            plain = open_connection("https", address.host, address.port, deadline.left)
            deadline.watch(plain)
            link.sock = context.wrap_socket(plain, server_hostname=address.host)
            link.request(method, path, body, headers)
            answer = link.getresponse()
            return answer.status, answer.read(LARGEST)
    except ProxyError as error:
        proxy = find_proxy("https", address.host, address.port)
        raise LinkError(f"{problem} through the {proxy}: {error}") from error
    except ssl.SSLError as error:
        raise LinkError(f"{problem}: {tls.explain(address, error)}") from error
    except (socket.gaierror, UnicodeError) as error:
        raise LinkError(
            f"{problem}: the name '{address.host}' does not resolve here: request a token "
            "with --host ADDRESS"
        ) from error
    except (OSError, HTTPException) as error:
        reason = (
            "connection refused"
            if isinstance(error, ConnectionRefusedError)
            else str(error) or type(error).__name__
        )
        raise LinkError(
            f"{problem}: {reason}: check that the coordinator runs with --tls, listens on this "
            "address (--listen), and that no firewall blocks the port; if the coordinator has "
            "another address, request a token with --host ADDRESS"
        ) from error
    finally:
        link.close()
