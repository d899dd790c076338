"""Serve the HTTPS endpoints at which devices obtain and renew their certificates, on a port of
their own. Uses Starlette and uvicorn (the extra `serve`).

GET  /authority   returns the authority's certificate, which a device compares with its token before
                  it sends anything
POST /enrol       exchanges a token's secret and a signing request for a certificate
POST /claim       the same for the secret of a claim, which many devices share
POST /renew       issues a new certificate to a client that shows a valid one, for the same name

A connection carries one request and is closed after some seconds. When the server is full, a new
one replaces the oldest of the address with the most, so that slow clients cannot keep others out.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.access import claims
from coordinator.access.certificate_authority import Authority
from federated.errors import Refused
from federated.runtime.connection_limits import RateLimiter
from federated.runtime.web_server import CERTIFICATE, BodyReader, Limits, WebServer
from federated.wire.enrolment_token import (
    AUTHORITY,
    CLAIM,
    ENROL,
    LARGEST,
    RENEW,
    Answer,
    Ask,
    Renewal,
)

__all__ = ["CONNECTION_TIMEOUT", "MAX_CONNECTIONS", "EnrolmentServer", "build_application"]

log = logging.getLogger(__name__)

CONNECTION_TIMEOUT = 10.0  # seconds
MAX_CONNECTIONS = 64
MAX_PER_ADDRESS = 32  # connections; a second address always gets in
SHUTDOWN_TIMEOUT = 5.0  # seconds for requests in progress
SIGNING = 4  # certificates to sign at a time
LOG_RATE = 1.0  # refusals to log per second: strangers must not fill the disk

Kind = TypeVar("Kind", Ask, Renewal)


class EnrolmentServer(WebServer):
    """Serves an authority from its own thread until closed."""

    def __init__(
        self, authority: Authority, address: tuple[str, int] | socket.socket, broker: str
    ) -> None:
        """address: host and port (0 picks a free one), or a listening socket. broker: the broker's
        address for devices (see `Answer`). Raises OSError if the port cannot be bound.
        """
        self._authority, self.context = authority, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_verify_locations(authority.ca)
        self.context.verify_mode = ssl.CERT_OPTIONAL  # a device that enrols has no certificate yet
        self.reload()
        limits = Limits(
            MAX_CONNECTIONS,
            SHUTDOWN_TIMEOUT,
            lifetime=CONNECTION_TIMEOUT,
            per_address=MAX_PER_ADDRESS,
        )
        super().__init__(build_application(authority, broker), address, limits, tls=self.context)

    def reload(self) -> None:
        """Load the authority's current certificate; new connections use it."""
        self.context.load_cert_chain(self._authority.server)


def build_application(authority: Authority, broker: str) -> Starlette:
    """Build the application. broker: the broker's address for devices."""
    bodies = BodyReader(LARGEST, MAX_CONNECTIONS * LARGEST, CONNECTION_TIMEOUT)
    signing, logged = anyio.CapacityLimiter(SIGNING), RateLimiter(LOG_RATE)

    async def show(request: Request) -> Response:
        return Response(
            authority.ca.read_bytes(),
            media_type="application/x-pem-file",
            headers={"connection": "close"},
        )

    async def enrol(request: Request) -> Response:
        asked = await _read(request, bodies, Ask)
        return await sign(
            "enrolled", lambda: authority.enrol(bytes.fromhex(asked.secret), asked.request)
        )

    async def claim(request: Request) -> Response:
        asked = await _read(request, bodies, Ask)
        place = f"enrolment, {request.client.host if request.client else 'unknown address'}"
        return await sign(
            "claimed",
            lambda: claims.claim(authority, bytes.fromhex(asked.secret), asked.request, place),
        )

    async def renew(request: Request) -> Response:
        shown = request.scope[CERTIFICATE]
        if not shown:
            raise HTTPException(
                401,
                "expected a client certificate of this authority; a device without one enrols "
                "with a token (coordinator enroll NAME)",
            )
        asked = await _read(request, bodies, Renewal)
        return await sign("renewed", lambda: authority.renew(shown, asked.request))

    async def sign(what: str, issue: Callable[[], str]) -> Response:
        try:
            certificate = await anyio.to_thread.run_sync(issue, limiter=signing)
        except Refused as error:
            if not logged.wait(what, time.monotonic()):
                log.warning("not %s: %s", what, error)
            raise HTTPException(403, str(error)) from error
        return _json(Answer(certificate, broker))

    routes = [
        Route(AUTHORITY, show, methods=["GET"]),
        Route(ENROL, enrol, methods=["POST"]),
        Route(CLAIM, claim, methods=["POST"]),
        Route(RENEW, renew, methods=["POST"]),
    ]
    handlers = {HTTPException: _answer_rejection, Exception: _answer_failure}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _read(request: Request, bodies: BodyReader, kind: type[Kind]) -> Kind:
    """Decode the body of a request."""
    async with bodies.read(request) as body:
        try:
            return msgspec.json.decode(body, type=kind)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            why = f"expected JSON of {kind.__name__}: {str(error)[:200]}"
            raise HTTPException(400, why) from error


async def _answer_rejection(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _answer_failure(request: Request, error: Exception) -> Response:
    log.error("enrolment: %s", error)
    return _json({"error": "internal error; see the coordinator's log"}, 500)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, {"connection": "close"}, "application/json")
