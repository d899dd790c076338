"""A small EST server (RFC 7030) over TLS, which issues certificates of a company's authority:
cacerts, simpleenroll with user and password, simplereenroll with the certificate in use.
"""

from __future__ import annotations

import base64
import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, pkcs7
from cryptography.x509.oid import NameOID

from tests.support.outside_authority import Company

__all__ = ["EstServer", "serve_est"]


class EstServer(http.server.ThreadingHTTPServer):
    """The server, and how it answers.

    logins: accepted users with passwords. pending: number of requests to answer with 202 first.
    requests: keys and operations of all requests for certificates.
    """

    def __init__(self, company: Company, server: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.company = company
        self.logins, self.pending = {"pi:secret"}, 0
        self.requests: list[tuple[str, bytes]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server)
        context.load_verify_locations(company.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server_port}/.well-known/est"


PUBLIC = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class Handler(http.server.BaseHTTPRequestHandler):
    server: EstServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/.well-known/est/cacerts":
            self.send_error(404)
            return
        self.answer(x509.load_pem_x509_certificates(self.server.company.ca.read_bytes()))

    def do_POST(self) -> None:
        operation = self.path.rpartition("/")[2]
        content = self.rfile.read(int(self.headers["content-length"]))
        asked = x509.load_der_x509_csr(base64.b64decode(content))
        assert self.headers["content-type"] == "application/pkcs10"
        assert asked.is_signature_valid
        self.server.requests.append((operation, asked.public_key().public_bytes(*PUBLIC)))
        names = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not self.permits(operation, str(names[0].value)):
            self.send_error(401)
        elif self.server.pending:
            self.server.pending -= 1
            self.send_response(202)
            self.send_header("retry-after", "60")
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self.answer([self.server.company.certify(asked)])

    def permits(self, operation: str, name: str) -> bool:
        """Return whether the client may ask for a certificate of this name."""
        shown = self.connection.getpeercert() or {}  # type: ignore[attr-defined]  # of TLS
        subject = dict(pair for part in shown.get("subject", ()) for pair in part)
        if operation == "simplereenroll":
            return subject.get("commonName") == name
        login = self.headers["authorization"].removeprefix("Basic ")
        return base64.b64decode(login).decode() in self.server.logins

    def answer(self, certificates: list[x509.Certificate]) -> None:
        content = base64.encodebytes(pkcs7.serialize_certificates(certificates, Encoding.DER))
        self.send_response(200)
        self.send_header("content-type", "application/pkcs7-mime; smime-type=certs-only")
        self.send_header("content-transfer-encoding", "base64")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serve_est(company: Company) -> Iterator[EstServer]:
    """Serve on loopback, as `localhost`."""
    with EstServer(company, company.issue("est", ["localhost"])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
