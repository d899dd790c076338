"""Serve the web page and its API over HTTP (Starlette and uvicorn, the extra `web`).

    GET  /                          the page
    POST /api/sign-in, /api/sign-out
    GET  /api/runs                  every run
    GET  /api/runs/RUN/PART         a part of a run (see `run_page_data.PARTS`)
    GET  /api/runs/RUN/stream       the run's status whenever it changes, as server-sent events
    POST /api/runs/RUN/request      a command such as pause or release (see `steering.COMMANDS`)

All but the page's files require a sign-in, and a request requires a token once more, whose role
allows the command.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coordinator.audit_log import Actor
from coordinator.store.run_folders import list_runs
from coordinator.views.run_list import describe_runs
from coordinator.web.page_protection import ProtectPages
from coordinator.web.run_page_data import PARTS, describe_part
from coordinator.web.sign_in import COOKIE, LIFETIME, SignIn, TokenHolder
from coordinator.web.steering import COMMANDS, NEEDED_ROLES, carry_out
from federated.errors import EspalierError
from federated.runtime.web_server import BodyReader, Limits, WebServer

__all__ = ["LOCAL", "PageServer", "Site", "format_url"]

LOCAL = ("127.0.0.1", "localhost", "::1")
POLL = 1.0  # seconds between two looks at a run's folder, as often as its coordinator writes it
KEEP_ALIVE = 15  # looks without a change until a stream sends an empty line
READERS = 4  # threads that read runs' folders
STEERING = 2  # threads that carry out commands; an export takes minutes
MAX_STREAMS = 100  # open pages
MAX_BODY, MAX_BODIES, BODY_TIMEOUT = 10_000, 1_000_000, 10.0
LIMITS = Limits(
    connections=400, farewell=3.0, idle=30.0, per_address=200, rate=100.0, requests=50.0
)
SIGN_IN_DELAY = 0.5  # seconds that a wrong token takes, so that guesses are slow


@dataclass(frozen=True)
class Site:
    """What a page server shows.

    runs: folder of the runs.
    files: folder of the built page.
    holders: the accepted tokens, each with its role and its holder's name.
    hosts: accepted names of this server; empty: any (then a browser must use HTTPS).
    """

    runs: Path
    files: Path
    holders: Sequence[TokenHolder]
    hosts: Sequence[str] = LOCAL


class PageServer:
    """Serve the page in a thread until closed."""

    def __init__(
        self, site: Site, listening: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        self._pages = Pages(site.runs)
        app = make_application(site, self._pages, secure=tls is not None)
        self._server = WebServer(app, listening, LIMITS, tls=tls)
        self.url = format_url(self._server.host, self._server.port, secure=tls is not None)

    @property
    def alive(self) -> bool:
        return self._server.alive

    def close(self) -> None:
        self._pages.closing = True
        self._server.close()


def format_url(host: str, port: int, *, secure: bool) -> str:
    scheme = "https" if secure else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def make_application(site: Site, pages: Pages, *, secure: bool = False) -> Starlette:
    """Return the web application. secure: it is served with HTTPS."""
    sign_in = SignIn(site.holders)
    bodies = BodyReader(MAX_BODY, MAX_BODIES, BODY_TIMEOUT)

    async def begin(request: Request) -> Response:
        async with bodies.read(request) as body:
            await check_token(sign_in, body)
        response = answer({})
        response.set_cookie(
            COOKIE, sign_in.begin(), LIFETIME, httponly=True, samesite="strict", secure=secure
        )
        return response

    async def end(request: Request) -> Response:
        sign_in.end(request)
        response = answer({})
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=secure)
        return response

    async def send(request: Request) -> Response:
        async with bodies.read(request) as body:
            given, holder = await check_token(sign_in, body)
        place = f"web page, from {request.client.host}" if request.client else "web page"
        actor = Actor(holder.name, holder.role, place)
        return answer(await pages.send(request.path_params["run"], given, actor))

    async def stream(request: Request) -> Response:
        return await pages.stream(request, lambda: sign_in.knows(request))

    def guard(endpoint: Callable[[Request], Awaitable[Response]]) -> Any:
        async def call(request: Request) -> Response:
            if not sign_in.knows(request):
                raise HTTPException(401, "sign in with a token of the file that the server names")
            return await endpoint(request)

        return call

    return Starlette(
        routes=[
            Route("/api/sign-in", begin, methods=["POST"]),
            Route("/api/sign-out", end, methods=["POST"]),
            Route("/api/runs", guard(pages.list)),
            Route("/api/runs/{run}/request", guard(send), methods=["POST"]),
            Route("/api/runs/{run}/stream", guard(stream)),
            Route("/api/runs/{run}/{part}", guard(pages.show)),
            Mount("/", StaticFiles(directory=site.files, html=True)),
        ],
        middleware=[Middleware(ProtectPages, site.hosts)],
        exception_handlers={
            HTTPException: explain_failure,
            EspalierError: explain_failure,
            Exception: explain_failure,
        },
    )


class Pages:
    """The runs' folders, read by a few threads.

    closing: streams end, because the server closes.
    """

    def __init__(self, runs: Path) -> None:
        self._runs, self._streams, self.closing = runs, 0, False
        self._limiter = anyio.CapacityLimiter(READERS)
        self._steering = anyio.CapacityLimiter(STEERING)

    async def list(self, request: Request) -> Response:
        return answer(await self._call(describe_runs, self._runs))

    async def show(self, request: Request) -> Response:
        run, part = request.path_params["run"], request.path_params["part"]
        if part not in PARTS:
            raise HTTPException(404, f"a run has no '{part[:40]}'; it has {', '.join(PARTS)}")
        await self._check(run)
        return answer(await self._call(describe_part, self._runs, run, part))

    async def send(self, run: str, given: Mapping[str, str], by: Actor) -> dict[str, Any]:
        """Carry out a command on a run, and return what happened."""
        command = given.get("command", "")
        if command not in COMMANDS:
            raise HTTPException(422, f"command: expected one of {', '.join(COMMANDS)}")
        await self._check(run)
        lines = await anyio.to_thread.run_sync(
            carry_out, self._runs / run, given, by, limiter=self._steering
        )
        return {"run": run, "asked": command, "lines": lines}

    async def stream(self, request: Request, signed_in: Callable[[], bool]) -> Response:
        """Send the run's status when it changes, until the page is closed or its sign-in ends."""
        run = request.path_params["run"]
        await self._check(run)
        if self._streams >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} pages are open; close one and reload")
        return StreamingResponse(self._follow(run, signed_in), media_type="text/event-stream")

    async def _follow(self, run: str, signed_in: Callable[[], bool]) -> AsyncIterator[bytes]:
        self._streams += 1
        last, quiet = b"", 0
        try:
            while not self.closing and signed_in():
                try:
                    made = msgspec.json.encode(
                        await self._call(describe_part, self._runs, run, "status")
                    )
                except Exception as error:  # such as a file that another version wrote
                    made = msgspec.json.encode({"error": describe_error(error)})
                if made != last:
                    last, quiet = made, 0
                    yield b"data: " + made + b"\n\n"
                elif (quiet := quiet + 1) % KEEP_ALIVE == 0:
                    yield b": no change\n\n"
                await anyio.sleep(POLL)
        finally:
            self._streams -= 1

    async def _check(self, run: str) -> None:
        """Check that there is such a run, which also keeps a name from leading elsewhere."""
        if run not in await self._call(list_runs, self._runs):
            raise HTTPException(404, f"no run '{run[:80]}' in {self._runs}")

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._limiter)


async def check_token(sign_in: SignIn, body: bytearray) -> tuple[dict[str, str], TokenHolder]:
    """Return the fields of a body, a JSON object, and who has its `token`, if the holder may give
    its `command`. Raises HTTPException.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise HTTPException(422, f"expected a JSON object of texts: {error}") from error
    holder = sign_in.find_holder(given.get("token", ""))
    if holder is None:
        await anyio.sleep(SIGN_IN_DELAY)
        raise HTTPException(403, "wrong token; tokens are in the file that the server names")
    needed = NEEDED_ROLES.get(command := given.get("command", ""), "viewer")
    if not holder.may(needed):
        raise HTTPException(
            403,
            f"{command}: expected a token with the role {needed}, found one with the role "
            f"{holder.role}",
        )
    return given, holder


async def explain_failure(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return answer({"error": error.detail}, error.status_code)
    status = 409 if isinstance(error, EspalierError) else 500
    return answer({"error": describe_error(error)}, status)


def describe_error(error: Exception) -> str:
    """Return an error in words for the page."""
    if isinstance(error, EspalierError):
        return str(error)
    return f"The server cannot read this: {type(error).__name__}: {str(error)[:300]}"


def answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
