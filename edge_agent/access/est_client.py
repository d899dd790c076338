"""Get and renew this device's certificate at a company's authority by EST (RFC 7030). Needs
`cryptography`.

    FOLDER/ca.pem      the authority's certificates, for the broker's address (?ca=FILE)
           agent.pem   its certificate, those of intermediate authorities, and the key (&cert=FILE)
           key.pem     exists while a request is not answered

The key is made here and never leaves the device. A first certificate is requested with a user and a
password, later ones with the certificate in use. A request that the authority has to approve is
repeated with the same key.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

from edge_agent.access.enrolment import (
    encode_key,
    find_agent_name,
    is_due,
    load_certificate,
    load_or_create_key,
)
from edge_agent.access.enrolment_files import hold_lock
from federated.certificate_request import sign_request
from federated.errors import ConfigError, LinkError, StoreError, UsageError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.connection_deadline import ConnectionDeadline
from federated.system.proxies import open_connection
from federated.wire import topics

__all__ = ["EstRequest", "obtain"]

TIMEOUT = 30.0  # seconds per request
LARGEST = 1 << 20  # bytes of an answer
PATH = "/.well-known/est"


@dataclass(frozen=True)
class EstRequest:
    """Options of `edge-agent certificate`.

    url: address of the authority, such as https://ca.example/.well-known/est
    name: of the agent; the common name of the certificate
    folder: of the files
    trust: certificates that the server's is checked with; None: those of the system
    user, password: for a first certificate; empty: none
    force: renew the certificate although it is not due
    """

    url: str
    name: str
    folder: Path
    trust: Path | None = None
    user: str = ""
    password: str = ""
    force: bool = False


@dataclass(frozen=True)
class Server:
    """The authority's server.

    host, port, path: of its address
    context: how its certificate is checked, and which one this device shows
    login: header with user and password; empty: none
    """

    host: str
    port: int
    path: str
    context: ssl.SSLContext
    login: Mapping[str, str]


def obtain(request: EstRequest) -> tuple[x509.Certificate, bool]:
    """Get a certificate, or renew it if less than a third of its life is left. Return it, and True
    if it is new. Raises UsageError, ConfigError, LinkError, StoreError.
    """
    if not re.match(topics.AGENT, request.name):
        raise UsageError(f"--name: expected the name of an agent, found '{request.name[:80]}'")
    folder, pem = request.folder, request.folder / "agent.pem"
    with explain_os_errors(StoreError, f"{folder}: expected a folder for the certificate"):
        atomic_files.make_private(folder, "this device's key")
        with hold_lock(folder):
            if pem.exists() and not (request.force or is_due(pem)):
                return check_name(load_certificate(pem), request.name), False
            server = open_server(request, pem if pem.exists() else None)
            authorities = ask(server, "GET", "cacerts")
            key = load_or_create_key(folder / "key.pem")
            what = "simplereenroll" if pem.exists() else "simpleenroll"
            body = base64.encodebytes(to_der(sign_request(request.name, key)))
            chain = sort_chain(ask(server, "POST", what, body), key, request.name, authorities)
            atomic_files.write(folder / "ca.pem", to_pem(authorities))
            atomic_files.write(pem, to_pem(chain) + encode_key(key), mode=0o600)
            (folder / "key.pem").unlink()
    return chain[0], True


def open_server(request: EstRequest, pem: Path | None) -> Server:
    """Return the server. pem: the certificate to show; None: user and password instead. Raises
    UsageError, ConfigError.
    """
    parts = urlsplit(request.url)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.query:
        raise UsageError(f"expected an address https://HOST{PATH}, found '{request.url[:200]}'")
    try:
        context = ssl.create_default_context(
            cafile=str(request.trust) if request.trust is not None else None
        )
        if pem is not None:
            context.load_cert_chain(pem)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot read {request.trust or pem}: {error}") from error
    login = f"{request.user}:{request.password}".encode()
    header = {"authorization": f"Basic {base64.b64encode(login).decode()}"}
    path = parts.path.rstrip("/") or PATH
    used = header if request.user and pem is None else {}
    return Server(parts.hostname, parts.port or 443, path, context, used)


def ask(
    server: Server, method: str, what: str, body: bytes | None = None
) -> list[x509.Certificate]:
    """Return the certificates in the server's answer. Raises LinkError."""
    problem = f"{server.host}:{server.port}: {what}"
    headers = {"connection": "close"}
    if body is not None:
        headers |= {"content-type": "application/pkcs10", "content-transfer-encoding": "base64"}
        headers |= server.login
    link = HTTPSConnection(server.host, server.port, context=server.context)
    try:
        with ConnectionDeadline(TIMEOUT) as deadline:
            plain = open_connection("https", server.host, server.port, deadline.left)
            deadline.watch(plain)
            link.sock = server.context.wrap_socket(plain, server_hostname=server.host)
            link.request(method, f"{server.path}/{what}", body, headers)
            answer = link.getresponse()
            content = answer.read(LARGEST + 1)
    except ssl.SSLCertVerificationError as error:
        raise LinkError(
            f"{problem}: {error.verify_message}: name the company's root certificate with --ca"
        ) from error
    except (OSError, HTTPException, UnicodeError) as error:
        raise LinkError(f"{problem}: {str(error) or type(error).__name__}") from error
    finally:
        link.close()
    if answer.status == HTTPStatus.OK and len(content) <= LARGEST:
        try:
            return pkcs7.load_der_pkcs7_certificates(base64.b64decode(content))
        except (ValueError, binascii.Error) as error:
            raise LinkError(f"{problem}: expected certificates (PKCS #7): {error}") from error
    raise LinkError(f"{problem}: {explain(answer.status, answer.getheader('retry-after'))}")


def explain(status: int, retry: str | None) -> str:
    """Return what a status means, with the remedy."""
    if status == HTTPStatus.ACCEPTED:
        when = f" in {retry} s" if retry and retry.isdecimal() else ""
        return f"the authority has to approve this device: repeat the command{when}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return (
            f"the authority refused this device (status {status}): check --user and "
            "--password-file, or the certificate in use"
        )
    return f"expected status 200, found {status}: check the address"


def sort_chain(
    found: Sequence[x509.Certificate],
    key: ec.EllipticCurvePrivateKey,
    name: str,
    authorities: Sequence[x509.Certificate],
) -> list[x509.Certificate]:
    """Return the certificate for this key, followed by those of intermediate authorities. Raises
    LinkError.
    """
    own = [one for one in found if one.public_key() == key.public_key()]
    if not own:
        raise LinkError("expected a certificate for this device's key, found none in the answer")
    chain = [check_name(own[0], name)]
    others = [one for one in (*found, *authorities) if one not in own]
    while (
        above := next((one for one in others if is_issued_by(chain[-1], one)), None)
    ) is not None and above not in chain:
        chain.append(above)
    if chain[-1] not in authorities:
        raise LinkError(
            "expected a certificate that an authority of cacerts issued, found one of "
            f"{own[0].issuer.rfc4514_string()[:100]}"
        )
    return [one for one in chain if one.issuer != one.subject]


def check_name(certificate: x509.Certificate, name: str) -> x509.Certificate:
    """Return a certificate of this agent. Raises LinkError if it has another name."""
    if (found := find_agent_name(certificate.subject)) != name:
        raise LinkError(f"expected a certificate with the common name '{name}', found '{found}'")
    return certificate


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def to_der(request: str) -> bytes:
    return x509.load_pem_x509_csr(request.encode()).public_bytes(Encoding.DER)


def to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
