"""Send a request to a server that a coordinator names, and repeat a transfer until it is complete.

Redirects are not followed: a device sends requests only to the hosts that its coordinator names.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from federated.errors import ConfigError, EspalierError, Refused, WireError
from federated.safe_text import make_safe
from federated.system.connection_deadline import ConnectionDeadline
from federated.system.proxies import open_connection

__all__ = ["HttpAccess", "HttpTransfer", "Passing", "Request", "parse_url"]

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 15.0  # seconds to connect, TLS included
STALL_TIMEOUT = 30.0  # seconds without a byte after which a transfer starts a new connection
PIECE = 64 << 10  # bytes that are sent at a time
# seconds between attempts; doubled while none moves a byte. The longest is shorter than the
# shortest lease, which starts over when a store works again
FIRST_WAIT, LONGEST_WAIT = 1.0, 8.0
PORTS = {"http": 80, "https": 443}
EXPLAINED = 500  # bytes of an answer that say why a server refuses
# statuses of a server that may accept the same request later
PASSING = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
        HTTPStatus.INSUFFICIENT_STORAGE,
    }
)


class Passing(OSError):
    """A failure of an attempt after which another one may succeed."""


class ByteCount:
    """A number of bytes that several threads increase."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size


@dataclass(frozen=True)
class HttpAccess:
    """How a device reaches the servers that a coordinator names.

    ca: file of a certificate authority to trust besides the system's; None: only the system's.
    tls_only: refuse addresses without TLS.
    transferred: bytes of content sent and received.
    """

    ca: str | None = None
    tls_only: bool = False
    transferred: ByteCount = field(default_factory=ByteCount, compare=False)

    def share(self, path: Path) -> str:
        """Return the address from which the coordinator takes a file of this device; empty: the
        device sends its content.
        """
        return ""

    def make_context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection. Raises ConfigError."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:  # also SSLError
                raise ConfigError(f"expected CA certificates in PEM format in {self.ca}") from error
        return context


@dataclass(frozen=True)
class Request:
    """A request.

    method: of HTTP.
    headers: in addition to those that every request has.
    body: bytes to send, in pieces; None: none.
    """

    method: str
    headers: Mapping[str, str]
    body: Iterator[memoryview] | None = None


def parse_url(url: str, access: HttpAccess) -> SplitResult:
    """Parse the address of a blob. Raises Refused for one that this device must not use."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        valid = False
    if not valid or " " in url or parts.scheme not in PORTS or "@" in parts.netloc:
        raise Refused(f"expected an address such as https://HOST/..., found {make_safe(url)}")
    if access.tls_only and parts.scheme != "https":
        raise Refused(
            f"the coordinator names {parts.scheme}://{parts.netloc}, but this device reaches its "
            "broker with TLS: the coordinator must name an address with https:// "
            "(http.certificate, or http.endpoint of a store)"
        )
    return parts


class HttpTransfer:
    """A transfer in a thread, which repeats it until it is complete, refused for good, or stopped.

    url: of the blob.
    what: what is transferred, for messages.
    moved: bytes that the receiver has.
    complete: whether the transfer is complete.
    failure: why it was given up; None: it was not.
    """

    def __init__(self, access: HttpAccess, url: str, what: str) -> None:
        """Raise Refused for an address that this device must not use."""
        self.url, self.what = url, what
        self.moved, self.complete = 0, False
        self.failure: Exception | None = None
        self._access, self._parts = access, parse_url(url, access)
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="http-transfer", daemon=True)

    def start(self) -> None:
        """Begin the transfer."""
        self._thread.start()

    def transfer_once(self) -> None:
        """Transfer in this thread, without another attempt after an error. Raises OSError,
        HTTPException, EspalierError.
        """
        self._attempt()
        self.complete = True

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """Stop the transfer. When this returns, it changes nothing more, though its thread may
        still end a connection.
        """
        with self._lock:
            self._stopped.set()
            self._release()
            if self._socket is not None:
                with suppress(OSError):  # not connected any more
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _attempt(self) -> None:
        """Transfer what is left. Raises OSError or HTTPException to try again, Refused or
        another EspalierError to give up.
        """
        raise NotImplementedError

    def _release(self) -> None:
        """Close what the transfer holds; called with the lock."""

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Hold the lock of a running transfer. Raises Passing if it was stopped."""
        with self._lock:
            if self._stopped.is_set():
                raise Passing("stopped")
            yield

    def _run(self) -> None:
        wait, told = FIRST_WAIT, False
        while not self._stopped.is_set():
            before = self.moved
            try:
                self.transfer_once()
                return
            except WireError as error:
                self.failure = error
                return
            except EspalierError as error:  # such as a wrong proxy, which must not end the agent
                self.failure = Refused(f"{self.what}: {error}")
                return
            except (OSError, HTTPException) as error:
                if self._stopped.is_set():
                    return
                if not told:
                    log.warning("%s", self._explain(error))
                told = True
            except Exception as error:  # otherwise nobody would know that the thread ended
                self.failure = Refused(f"{self.what}: {type(error).__name__}: {error}")
                return
            wait = FIRST_WAIT if self.moved > before else min(2 * wait, LONGEST_WAIT)
            self._stopped.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311  # no secret

    def _explain(self, error: OSError | HTTPException) -> str:
        place = f"{self._parts.scheme}://{self._parts.netloc}"
        if isinstance(error, Passing):
            return f"{self.what}: {place} answers {error}; trying again"
        reason = str(error) or type(error).__name__
        if isinstance(error, ConnectionRefusedError):
            reason = "connection refused"
        remedy = (
            "let the coordinator's operator name an authority that this device trusts"
            if isinstance(error, ssl.SSLCertVerificationError)
            else "check that the server (http.listen) or the store (http.store) runs, that this "
            "device reaches the address (http.url), and the firewall"
        )
        return f"{self.what}: cannot reach {place}: {reason}; trying again: {remedy}"

    # ---- requests --------------------------------------------------------------------------------

    @contextmanager
    def _send(self, request: Request) -> Iterator[HTTPResponse]:
        """Send a request over a connection of its own, and give the answer. Raises OSError,
        HTTPException.
        """
        connection = self._connect()
        try:
            target = self._parts._replace(scheme="", netloc="").geturl() or "/"
            headers = {"User-Agent": "espalier", "Accept-Encoding": "identity", **request.headers}
            # a server may answer before it has read everything
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(request.method, target, request.body, headers)
            answer = connection.getresponse()
            with answer:
                yield answer
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def _put(self, data: memoryview, headers: Mapping[str, str]) -> None:
        """Send bytes by PUT, and check that they were taken. Raises as `_send` and `_check`."""
        headers = {
            "Content-Length": str(len(data)),
            "Content-Type": "application/octet-stream",
            **headers,
        }
        with self._send(Request("PUT", headers, self._read_pieces(data))) as answer:
            self._check(answer, HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)

    def _read_pieces(self, data: memoryview) -> Iterator[memoryview]:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            with self._going_on():
                pass
            self._access.transferred.add(len(piece))
            yield piece

    def _connect(self) -> HTTPConnection:
        parts = self._parts
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        connection = HTTPConnection(host, port)
        with ConnectionDeadline(CONNECT_TIMEOUT) as deadline:
            sock = open_connection(parts.scheme, host, port, deadline.left)
            deadline.watch(sock)
            if parts.scheme == "https":
                sock = self._access.make_context().wrap_socket(sock, server_hostname=host)
            sock.settimeout(STALL_TIMEOUT)
        connection.sock = sock
        try:
            with self._going_on():
                self._socket = sock
        except Passing:
            connection.close()
            raise
        return connection

    def _check(self, answer: HTTPResponse, *accepted: int) -> None:
        """Raise Passing for a failure that may pass, and Refused for any other answer than the
        accepted ones.
        """
        if answer.status in accepted:
            return
        told = make_safe(answer.read(EXPLAINED).decode(errors="replace"))
        reason = f"{answer.status}" + (f" ({told})" if told else "")
        if answer.status in PASSING:
            raise Passing(reason)
        place = f"{self._parts.scheme}://{self._parts.netloc}"
        raise Refused(f"{self.what}: {place} answers {reason}")
