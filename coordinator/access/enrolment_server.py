"""Where devices are let in: HTTPS by the authority's own certificate, at a port of its own. It
needs the extra `serve`.

GET  /authority   the authority's certificate, which a device compares with its token before it says
anything
POST /enrol       a token's secret and a request for a certificate: the certificate
POST /renew       by who shows a certificate of ours that is good: another one for the same name

A connection is one question and lasts some seconds at most, so that nobody can keep others out by
being slow.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.access.authority import Authority
from federated.errors import LinkError, Refused
from federated.runtime.web_server import CERTIFICATE, Limits, WebServer
from federated.wire.enrolment_token import AUTHORITY, ENROL, LARGEST, RENEW, Answer, Ask, Renewal

__all__ = ["LASTING", "OPEN", "Enrolment", "application"]

log = logging.getLogger(__name__)

LASTING = 10.0  # seconds that a connection may take, whatever it does
OPEN = 64  # connections at a time
FAREWELL = 5.0  # seconds that questions under way have to end

Kind = TypeVar("Kind", Ask, Renewal)


class Enrolment:
    """Serves an authority from a thread of its own until closed."""

    def __init__(
        self, authority: Authority, listen: str, port: int, broker: Callable[[], str]
    ) -> None:
        """broker: what devices are told of the broker (see `Answer`). port: 0 for any. Raises
        LinkError where it cannot be listened there.
        """
        self._authority, self.context = authority, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_verify_locations(authority.ca)
        self.context.verify_mode = ssl.CERT_OPTIONAL  # who enrols has none yet
        self.reload()
        try:
            self._server = WebServer(
                application(authority, broker),
                (listen, port),
                Limits(OPEN, FAREWELL, lifetime=LASTING),
                tls=self.context,
            )
        except OSError as error:
            raise LinkError(
                f"enrolment cannot listen at port {port} of {listen}: {error.strerror}; "
                "choose another by --set broker.enrol=PORT"
            ) from error
        self.port = self._server.port

    def reload(self) -> None:
        """Shows the authority's present certificate from the next connection on."""
        self.context.load_cert_chain(self._authority.server)

    def close(self) -> None:
        self._server.close()


def application(authority: Authority, broker: Callable[[], str]) -> Starlette:
    """The application. broker: what devices are told of the broker."""

    async def show(request: Request) -> Response:
        return Response(
            authority.ca.read_bytes(),
            media_type="application/x-pem-file",
            headers={"connection": "close"},
        )

    async def enrol(request: Request) -> Response:
        asked = await _read(request, Ask)
        return await _signed(
            "enrolled", lambda: authority.enrol(bytes.fromhex(asked.secret), asked.request)
        )

    async def renew(request: Request) -> Response:
        shown = request.scope[CERTIFICATE]
        if not shown:
            raise HTTPException(
                401,
                "expected a certificate of this authority, to be followed by another; "
                "without one, enrol by a token",
            )
        asked = await _read(request, Renewal)
        return await _signed("renewed", lambda: authority.renew(shown, asked.request))

    async def _signed(what: str, sign: Callable[[], str]) -> Response:
        try:
            certificate = await anyio.to_thread.run_sync(sign)
        except Refused as error:
            log.warning("not %s: %s", what, error)
            raise HTTPException(403, str(error)) from error
        return _json(Answer(certificate, broker()))

    routes = [
        Route(AUTHORITY, show, methods=["GET"]),
        Route(ENROL, enrol, methods=["POST"]),
        Route(RENEW, renew, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _told, Exception: _broken})


async def _read(request: Request, kind: type[Kind]) -> Kind:
    """The question, never more of it in memory than is allowed."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                raise HTTPException(413, f"expected at most {LARGEST} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the question broke off") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise HTTPException(400, f"expected JSON of {kind.__name__}: {str(error)[:200]}") from error


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("enrolment: %s", error)
    return _json({"error": "the coordinator could not do that; its log says why"}, 500)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, {"connection": "close"}, "application/json")
