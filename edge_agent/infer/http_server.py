"""What an agent serves, over HTTP: POST /infer, GET /health, GET /release. It needs the extra
`serve` and no torch.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from edge_agent.access.http_address import Address
from edge_agent.infer.engine import Engine
from edge_agent.infer.inputs import unpacked
from edge_agent.infer.replies import MOST, about, inputs_of, reply
from export.verify import Array
from federated.errors import ConfigError, DataError, ExportError, UsageError
from federated.runtime.web_server import Limits, WebServer

__all__ = ["LARGEST", "WAITING", "Server", "application"]

log = logging.getLogger(__name__)

LARGEST = 8 << 20  # bytes of a question
AT_ONCE = 4  # questions answered side by side: ONNX Runtime lets other threads run meanwhile
WAITING = 32  # questions that may wait beyond that; more are asked to come again
OPEN = 256  # connections at a time: a process may have no more than some hundred files open
PATIENCE = 30.0  # seconds that a question may take to arrive, and before that its headers
FAREWELL = 10.0  # seconds that questions under way have to end
# a browser's page of another name that was made to mean this machine is refused
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
NPY = ("application/x-npy", "application/octet-stream")

State = Callable[[], dict[str, Any]]


class Server:
    """Serves an engine from a thread of its own until closed; questions under way then get their
    answers.
    """

    def __init__(self, engine: Engine, address: Address, state: State, token: str = "") -> None:
        """Listens at once. token: what askers must know; needed beyond this machine. Raises
        UsageError, ConfigError where that is not possible.
        """
        if not address.local and not token:
            raise UsageError(
                f"--serve {address.host}: others can reach this address: name a secret "
                "that askers must know by --token-file FILE"
            )
        app = application(
            engine, state, token, names=(*LOCAL, address.host) if address.local else ()
        )
        limits = Limits(OPEN, FAREWELL, idle=PATIENCE)
        try:
            self._server = WebServer(app, (address.host, address.port), limits)
        except OSError as error:
            raise ConfigError(
                f"--serve {address.host}:{address.port}: {error.strerror or error}"
            ) from error
        host, port = self._server.host, self._server.port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Takes no more questions, and waits for those under way."""
        self._server.close()


def application(
    engine: Engine, state: State, token: str = "", *, names: Sequence[str] = LOCAL
) -> Starlette:
    """The application. state: what GET /release tells; names: of this machine, by one of which
    askers without a token must ask for it.
    """
    limit, under_way = anyio.CapacityLimiter(AT_ONCE), set[Request]()

    async def infer(request: Request) -> Response:
        if len(under_way) >= AT_ONCE + WAITING:
            raise HTTPException(503, f"{WAITING} questions wait already", {"Retry-After": "1"})
        under_way.add(request)
        try:
            body, kind = (
                await _body(request),
                request.headers.get("content-type", "").split(";")[0].strip().lower(),
            )
            return await anyio.to_thread.run_sync(_answered, engine, kind, body, limiter=limit)
        finally:
            under_way.discard(request)

    async def health(request: Request) -> Response:
        choice = engine.choice
        return (
            _json({"status": "waiting"}, 503)
            if choice is None
            else _json({"status": "ok", **about(choice)})
        )

    async def release(request: Request) -> Response:
        return _json(state())

    routes = [
        Route("/infer", _guarded(infer, token), methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/release", _guarded(release, token), methods=["GET"]),
    ]
    trusted = (
        [Middleware(TrustedHostMiddleware, allowed_hosts=list(names))]
        if names and not token
        else []
    )
    return Starlette(
        routes=routes,
        middleware=trusted,
        exception_handlers={HTTPException: _told, Exception: _broken},
    )


def _guarded(
    endpoint: Callable[[Request], Awaitable[Response]], token: str
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint for those who know the token."""

    async def guard(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if token and not (
            scheme.lower() == "bearer"
            and hmac.compare_digest(given.strip().encode(), token.encode())
        ):
            raise HTTPException(
                401,
                "expected the header 'Authorization: Bearer TOKEN' with this agent's token",
                {"WWW-Authenticate": "Bearer"},
            )
        return await endpoint(request)

    return guard


async def _body(request: Request) -> bytes:
    """The body, never more of it in memory than is allowed."""
    parts, size = [], 0
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said) > LARGEST:
        raise HTTPException(413, f"expected at most {LARGEST} bytes, found {said}")
    try:
        with anyio.fail_after(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST:
                    raise HTTPException(413, f"expected at most {LARGEST} bytes, found more")
                parts.append(part)
    except TimeoutError as error:
        raise HTTPException(408, f"the question did not arrive within {PATIENCE:.0f} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the question broke off") from error
    return b"".join(parts)


def _answered(engine: Engine, kind: str, body: bytes) -> Response:
    """Runs in a thread."""
    try:
        return _json(reply(engine.answer(_inputs(kind, body), "the question", MOST)))
    except DataError as error:
        raise HTTPException(422, str(error)) from error
    except ExportError as error:
        raise HTTPException(503 if engine.choice is None else 500, str(error)) from error


def _inputs(kind: str, body: bytes) -> Array:
    if kind == "application/json":
        return inputs_of(body, "the question")
    if kind in NPY:
        return unpacked(body, "the question")
    raise HTTPException(
        415,
        f"expected the content type application/json or {' or '.join(NPY)}, found '{kind[:100]}'",
    )


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code, error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: {str(error)[:300]}"}, 500)


def _json(value: object, status: int = 200, headers: Any = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
