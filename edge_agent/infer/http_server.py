"""Serve inference over HTTP: POST /infer, GET /health, GET /release. Uses Starlette and uvicorn
(the extra `serve`); does not import torch.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edge_agent.infer.engine import Engine
from edge_agent.infer.inputs import parse_npy
from edge_agent.infer.requests_and_replies import (
    MAX_EXAMPLES,
    describe_choice,
    make_reply,
    parse_inputs,
)
from federated.errors import ConfigError, DataError, ExportError, UsageError, explain_os_errors
from federated.runtime.listen_address import ListenAddress
from federated.runtime.web_server import BodyReader, Limits, WebServer

__all__ = ["MAX_BYTES", "MAX_WAITING", "HttpServer"]

MAX_BYTES = 8 << 20  # maximum size of a request in bytes
CONCURRENT = 4  # concurrent requests: ONNX Runtime releases other threads while it computes
MAX_WAITING = 32  # maximum number of waiting requests beyond that; others are rejected with 503
MAX_BODIES = 16 << 20  # maximum size of all requests in memory; others are rejected with 503
MAX_CONNECTIONS = 256  # maximum number of connections: a process may open only some hundred files
MAX_PER_ADDRESS = 64  # maximum number of connections of another machine
MAX_RATE = 1000.0  # new connections per address and second, and requests per address and second
BODY_TIMEOUT = 30.0  # seconds for a request's body to arrive, and for its headers
SHUTDOWN_TIMEOUT = 10.0  # seconds for running requests to end on shutdown
# rejects DNS rebinding: a web page under another name that resolves to this machine
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
NPY = ("application/x-npy", "application/octet-stream")

State = Callable[[], dict[str, Any]]


class HttpServer:
    """Serve an engine in its own thread until closed; running requests are then completed."""

    def __init__(
        self, engine: Engine, address: ListenAddress, state: State, token: str = ""
    ) -> None:
        """Start listening.

        token: token that clients must send; required if other machines can connect
        Raises UsageError, ConfigError.
        """
        if not address.local and not token:
            raise UsageError(
                f"--serve {address.host}: other machines can reach this address, so clients must "
                "send a token: put one in a file (openssl rand -hex 16 > FILE), and add "
                "--token-file FILE"
            )
        app = make_application(
            engine, state, token, names=(*LOCAL, address.host) if address.local else ()
        )
        limits = Limits(
            MAX_CONNECTIONS,
            SHUTDOWN_TIMEOUT,
            idle=BODY_TIMEOUT,
            per_address=None if address.local else MAX_PER_ADDRESS,
            rate=MAX_RATE,
            requests=MAX_RATE,
        )
        with explain_os_errors(ConfigError, f"--serve {address.host}:{address.port}"):
            self._server = WebServer(app, (address.host, address.port), limits)
        host, port = self._server.host, self._server.port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Stop accepting requests, and wait for running ones."""
        self._server.close()


def make_application(
    engine: Engine, state: State, token: str = "", *, names: Sequence[str] = LOCAL
) -> Starlette:
    """Return the web application.

    state: returns the body of GET /release
    names: accepted Host names for requests without a token
    """
    limit, under_way = anyio.CapacityLimiter(CONCURRENT), set[Request]()
    bodies = BodyReader(MAX_BYTES, MAX_BODIES, BODY_TIMEOUT)

    async def infer(request: Request) -> Response:
        if len(under_way) >= CONCURRENT + MAX_WAITING:
            raise HTTPException(
                503, f"{MAX_WAITING} requests are already waiting", {"Retry-After": "1"}
            )
        kind = _read_content_type(request)
        under_way.add(request)
        try:
            async with bodies.read(request) as body:
                return await anyio.to_thread.run_sync(_answer, engine, kind, body, limiter=limit)
        finally:
            under_way.discard(request)

    async def health(request: Request) -> Response:
        choice = engine.choice
        return (
            _encode({"status": "waiting"}, 503)
            if choice is None
            else _encode({"status": "ok", **describe_choice(choice)})
        )

    async def release(request: Request) -> Response:
        return _encode(state())

    routes = [
        Route("/infer", _require_token(infer, token), methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/release", _require_token(release, token), methods=["GET"]),
    ]
    trusted = (
        [Middleware(TrustedHostMiddleware, allowed_hosts=list(names))]
        if names and not token
        else []
    )
    return Starlette(
        routes=routes,
        middleware=trusted,
        exception_handlers={HTTPException: _error_response, Exception: _failure_response},
    )


def _require_token(
    endpoint: Callable[[Request], Awaitable[Response]], token: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for clients that send the token."""

    async def guard(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if token and not (
            scheme.lower() == "bearer"
            and hmac.compare_digest(given.strip().encode(), token.encode())
        ):
            raise HTTPException(
                401,
                "expected the header 'Authorization: Bearer TOKEN' with the token in the "
                "--token-file of this agent",
                {"WWW-Authenticate": "Bearer"},
            )
        return await endpoint(request)

    return guard


def _read_content_type(request: Request) -> str:
    """Return the content type of a request. HTTPException: it is not supported."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json" and kind not in NPY:
        expected = f"application/json or {' or '.join(NPY)}"
        raise HTTPException(415, f"expected the content type {expected}, found '{kind[:100]}'")
    return kind


def _answer(engine: Engine, kind: str, body: bytearray) -> Response:
    """Answer a request; runs in a thread."""
    try:
        inputs = (
            parse_npy(body, "the request")
            if kind in NPY
            else parse_inputs(body, "the request", engine.session)
        )
        return _encode(make_reply(engine.answer(inputs, "the request", MAX_EXAMPLES)))
    except DataError as error:
        raise HTTPException(422, str(error)) from error
    except ExportError as error:
        raise HTTPException(503 if engine.choice is None else 500, str(error)) from error


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _encode({"error": error.detail}, error.status_code, error.headers)


async def _failure_response(request: Request, error: Exception) -> Response:
    return _encode({"error": f"{type(error).__name__}: {str(error)[:300]}"}, 500)


def _encode(value: object, status: int = 200, headers: Any = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
