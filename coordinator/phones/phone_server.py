"""Serve the page with which phones join a run (Starlette and uvicorn, the extra `web`).

GET  /phone/        the page; its script trains on the phone
POST /phone/join    enrols a phone with a one-time token
GET  /phone/digits  the part of the handwritten digits for a phone, to practise with
GET  /mqtt          WebSocket with MQTT 3.1.1 to the broker, for enrolled phones
"""

from __future__ import annotations

import logging
import mimetypes
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from starlette.websockets import WebSocket

from coordinator.phones.defaults import PAGE
from coordinator.phones.mqtt_pipe import Pipes
from coordinator.phones.phone_enrolment import NONCE, PhoneEnrolment
from coordinator.phones.practice_data import encode_digits
from federated.errors import DataError, EspalierError, Refused, UsageError
from federated.runtime.connection_limits import RateLimiter
from federated.runtime.web_server import BodyReader, Limits, WebServer

__all__ = ["HEADERS", "PhoneServer", "PhoneSite"]

log = logging.getLogger(__name__)

MAX_BODY, MAX_BODIES, BODY_TIMEOUT = 4096, 1 << 20, 10.0
ENROLMENTS = 2  # at a time; each makes a key and signs a certificate
READERS = 2  # of the digits at a time
JOINS = 1.0  # attempts to join per address and second; further ones are answered with 429
# connections at a time. Those of phones with a password count for the phone, no longer for their
# address, which may be a proxy's.
CONNECTIONS, PER_ADDRESS = 2048, 128
COMPRESSED = (("br", ".br"), ("gzip", ".gz"))  # encodings and their files, the smallest first
BINARY = "application/octet-stream"
ASSETS = "assets/"  # files whose names contain their hash
FOREVER, ALWAYS_CHECK = "public, max-age=31536000, immutable", "no-cache"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'{transfers}; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY.format(transfers=""),
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class PhoneSite:
    """What a phone server serves.

    files: folder of the built page.
    run: name of the run that phones join.
    transfers: origin of the server or the store of transfers over HTTP; empty: there are none.
    """

    files: Path
    run: str
    transfers: str = ""


class Joining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to join.

    token: as `coordinator enroll` prints it.
    nonce: random bytes, hexadecimal. The same ones get the same answer, in case it was lost.
    """

    token: str
    nonce: Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{2 * NONCE}}}\Z")]


class PhoneServer(WebServer):
    """Serves phones in a thread until closed."""

    def __init__(
        self,
        site: PhoneSite,
        enrolment: PhoneEnrolment,
        pipes: Pipes,
        listening: socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        limits = Limits(
            CONNECTIONS,
            farewell=3.0,
            idle=30.0,
            per_address=PER_ADDRESS,
            rate=50.0,
            requests=50.0,
            message=pipes.limit,
        )
        super().__init__(make_application(site, enrolment, pipes), listening, limits, tls=tls)


class PageFiles(StaticFiles):
    """The page's files, compressed where the browser accepts it. Some exist only compressed."""

    def __init__(self, site: PhoneSite) -> None:
        super().__init__(directory=site.files)
        transfers = f" {site.transfers}" if site.transfers else ""
        policy = POLICY.format(transfers=transfers)
        self._headers = {**HEADERS, "Content-Security-Policy": policy}

    async def get_response(self, path: str, scope: Scope) -> Response:
        accepted = HTTPConnection(scope).headers.get("accept-encoding", "")
        encodings = {one.partition(";")[0].strip() for one in accepted.split(",")}
        path = "index.html" if path == "." else path
        response = None
        for encoding, ending in COMPRESSED:
            full, _ = self.lookup_path(path + ending)
            if full and encoding in encodings:
                response = await super().get_response(path + ending, scope)
                response.headers["Content-Encoding"] = encoding
                kind = mimetypes.guess_type(path)[0] or BINARY
                response.headers["Content-Type"] = kind
                break
        response = response or await super().get_response(path, scope)
        response.headers["Vary"] = "Accept-Encoding"
        fixed = path.startswith(ASSETS) and response.status_code < 400
        response.headers["Cache-Control"] = FOREVER if fixed else ALWAYS_CHECK
        response.headers.update(self._headers)
        return response


def make_application(site: PhoneSite, enrolment: PhoneEnrolment, pipes: Pipes) -> Starlette:
    bodies = BodyReader(MAX_BODY, MAX_BODIES, BODY_TIMEOUT)
    enrolling, rate = anyio.CapacityLimiter(ENROLMENTS), RateLimiter(JOINS)
    reading = anyio.CapacityLimiter(READERS)

    async def join(request: Request) -> Response:
        check_origin(request)
        async with bodies.read(request) as body:
            try:
                asked = msgspec.json.decode(body, type=Joining)
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
                raise HTTPException(400, f"expected a JSON object: {str(error)[:200]}") from error
        if rate.wait(request.client and request.client.host, time.monotonic()):
            raise HTTPException(429, "too many attempts to join; try again in some seconds")
        name, password = await anyio.to_thread.run_sync(
            enrolment.enrol, asked.token, bytes.fromhex(asked.nonce), limiter=enrolling
        )
        return answer({"name": name, "password": password, "run": site.run})

    async def send_digits(request: Request) -> Response:
        asked = request.query_params
        blob = await anyio.to_thread.run_sync(
            encode_digits, asked.get("agent", ""), asked.get("shard"), limiter=reading
        )
        return Response(blob, 200, {**HEADERS, "Cache-Control": "no-store"}, BINARY)

    async def connect(socket: WebSocket) -> None:
        try:
            check_origin(socket)
            if "mqtt" not in socket.scope["subprotocols"]:
                raise HTTPException(400, "expected a WebSocket with the subprotocol mqtt")
        except HTTPException as error:
            await socket.send_denial_response(await explain_failure(socket, error))
            return
        await socket.accept("mqtt")
        await pipes.serve(socket)

    return Starlette(
        routes=[
            Route(f"{PAGE}join", join, methods=["POST"]),
            Route(f"{PAGE}digits", send_digits),
            WebSocketRoute("/mqtt", connect),
            # relative, since a proxy may serve them with HTTPS, or below a path of its own
            Route("/", lambda request: RedirectResponse(PAGE[1:])),
            Route(PAGE[:-1], lambda request: RedirectResponse(PAGE[1:])),
            Mount(PAGE.rstrip("/"), PageFiles(site)),
        ],
        exception_handlers={
            HTTPException: explain_failure,
            EspalierError: explain_failure,
            Exception: explain_failure,
        },
    )


def check_origin(request: HTTPConnection) -> None:
    """Raise HTTPException for a request that a page of another site sends."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if foreign or site not in (None, "same-origin", "none"):
        raise HTTPException(403, "refused: the request comes from another site")


async def explain_failure(request: HTTPConnection, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return answer({"error": error.detail}, error.status_code)
    if isinstance(error, UsageError | DataError | Refused):
        return answer({"error": str(error)}, 403 if isinstance(error, Refused) else 400)
    log.error("the phones' server failed: %s: %s", type(error).__name__, error)
    return answer({"error": "the server failed; see the coordinator's log"}, 500)


def answer(value: object, status: int = 200) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return Response(msgspec.json.encode(value), status, headers, "application/json")
