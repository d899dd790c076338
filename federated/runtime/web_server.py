"""Run a web server in its own thread, with limits on connections, requests and bodies.

It subclasses uvicorn's server and HTTP/1.1 protocol, which uvicorn may change in any version. Hence
pyproject.toml caps the version: raise the cap after this module's tests pass with the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from federated.runtime.connection_limits import (
    Acceptor,
    Connection,
    Limits,
    RateLimiter,
    find_client,
    listen,
)
from federated.system.memory_allocation import LARGE, return_at_once, return_free_memory

__all__ = ["CERTIFICATE", "IDENTIFY", "BodyReader", "Limits", "WebServer"]

CERTIFICATE = "espalier.certificate"  # in a request's scope: the client's (DER), or None
IDENTIFY = "espalier.identify"  # in a request's scope: function, see `Acceptor.identify`
TRIMMING = 1.0  # seconds between two returns of small blocks while bodies arrive
SHARE = 0.75  # of the memory for bodies that one address may use, so that others are answered
DRAIN_TIMEOUT = 10.0  # seconds to read the rest of a request that is already answered
DRAIN_BYTES = 16 << 20
BODY = (b"content-length", b"transfer-encoding")  # headers of a request with a body


class WebServer:
    """Serve an ASGI application until `close`."""

    def __init__(
        self,
        app: ASGIApp,
        address: tuple[str, int] | socket.socket,
        limits: Limits,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen, and return when requests are served.

        address: host and port (0 for any free one), or a listening socket. tls: serve HTTPS with
        this context, which may load another certificate later. Raises OSError if the address cannot
        be used.
        """
        self._socket = address if isinstance(address, socket.socket) else listen(*address)
        self.host: str = self._socket.getsockname()[0]
        self.port: int = self._socket.getsockname()[1]
        self._farewell = limits.farewell
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers cause its warnings
        config = uvicorn.Config(
            app,
            loop="asyncio:SelectorEventLoop",  # also on Windows: it can wait for a socket
            ws="none",  # see `Protocol`
            ws_max_size=limits.message,
            ws_ping_interval=None,  # a paused connection reads no answer
            ws_per_message_deflate=False,
            lifespan="off",
            server_header=False,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(limits.farewell),
        )
        self._server = Server(config, limits, tls)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="web-server", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    @property
    def alive(self) -> bool:
        """True if the server's thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Accept no more requests, and wait for open ones, up to `Limits.farewell` seconds."""
        self._server.should_exit = True
        self._thread.join(self._farewell + 5)
        with contextlib.suppress(OSError):
            self._socket.close()


class Server(uvicorn.Server):
    """uvicorn's server, with `Acceptor` in front."""

    def __init__(self, config: uvicorn.Config, limits: Limits, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._limits, self._tls = limits, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        rates = RateLimiter(self._limits.requests)

        def make(connection: Connection) -> asyncio.Protocol:
            return Protocol(self, connection, acceptor, rates)

        assert sockets is not None
        acceptor = Acceptor(sockets[0], self._limits, make, self._tls)
        self.servers = [acceptor]  # type: ignore[list-item]  # it has the methods that uvicorn calls
        self.started = True


class Protocol(H11Protocol):
    """uvicorn's protocol, which tells the acceptor when a connection is idle, limits the rate of
    requests, and puts the client's certificate into each request.
    """

    def __init__(
        self, server: Server, connection: Connection, acceptor: Acceptor, rates: RateLimiter
    ) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._connection, self._acceptor, self._rates = connection, acceptor, rates
        self._drained: asyncio.Event | None = None  # set when the rest of a request is discarded
        self._discarded, self._upgraded = 0, False
        if server.config.ws_max_size:
            self.ws_protocol_class = self._make_web_socket  # type: ignore[assignment]

    # The type of `transport` is that of uvicorn's method.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.transport = transport
        secure = transport.get_extra_info("ssl_object")
        self._secure = secure is not None
        self.app = self._wrap(self.app, secure.getpeercert(True) if self._secure else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._acceptor.forget(self._connection)
        if self._drained is not None:
            self._drained.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._drained is not None:
            self._discarded += len(data)
            if self._discarded > DRAIN_BYTES:
                self._drained.set()
            return
        self._connection.begun = True
        super().data_received(data)
        self._connection.busy = self._is_busy()

    def on_response_complete(self) -> None:
        self._acceptor.set_idle(self._connection)
        super().on_response_complete()  # may begin the next request
        self._connection.busy = self._is_busy()

    def _is_busy(self) -> bool:
        return self._upgraded or (self.cycle is not None and not self.cycle.response_complete)

    def _make_web_socket(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol:
        """Return the protocol that takes over this connection, which stays busy until its end."""
        # needs the package websockets
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        def forget() -> None:
            self._acceptor.forget(self._connection)

        class WebSocket(WebSocketsSansIOProtocol):
            def connection_lost(self, exc: Exception | None) -> None:
                forget()
                super().connection_lost(exc)

        self._upgraded = True
        made = WebSocket(config, server_state, app_state)
        made.app = self.app
        return made

    def _wrap(self, app: ASGIApp, certificate: bytes | None) -> ASGIApp:
        """Return the application for this connection."""
        client = certificate or self._connection.address

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CERTIFICATE] = certificate
            scope[IDENTIFY] = partial(self._acceptor.identify, self._connection)
            body = scope["type"] == "http" and any(name in BODY for name, _ in scope["headers"])
            unread = body and not self._secure

            async def receive_part() -> Message:
                nonlocal unread
                message = await receive()
                unread = bool(message.get("more_body"))
                return message

            async def send_part(message: Message) -> None:
                start = message["type"] == "http.response.start"
                if unread and start:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
                if unread and not start and not message.get("more_body"):
                    await send({**message, "more_body": True})
                    await self._drain()
                    message = {"type": "http.response.body"}
                await send(message)

            if seconds := self._rates.wait(client, self.loop.time()):
                # closed: further requests would still have to be read
                headers = {"Retry-After": str(math.ceil(seconds)), "Connection": "close"}
                error = JSONResponse({"error": "too many requests of this client"}, 429, headers)
                await error(scope, receive_part, send_part)
            else:
                await app(scope, receive_part, send_part)

        return call

    async def _drain(self) -> None:
        """End an answer, and discard the rest of its request. Otherwise the kernel resets the
        connection, and a client that still sends does not see the answer.
        """
        self._acceptor.set_idle(self._connection)
        self._drained = asyncio.Event()
        self.flow.resume_reading()
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        with anyio.move_on_after(DRAIN_TIMEOUT):
            await self._drained.wait()


class BodyReader:
    """Reads the bodies of requests, with limits on their size, their time and the memory of all
    together.
    """

    def __init__(self, largest: int, total: int, timeout: float) -> None:
        """largest: bytes of one body. total: bytes of all bodies in memory. timeout: seconds for a
        body to arrive.
        """
        self._largest, self._total, self._timeout = largest, total, timeout
        self._reserved = Counter[str]()  # bytes by address
        self._trimmed = -math.inf  # when memory was returned last
        return_at_once()

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Read a body. Its memory stays reserved until the context ends; it is reserved before the
        body is read if the request declares its length. Raises HTTPException.
        """
        declared = request.headers.get("content-length", "0")
        size = int(declared) if declared.isdecimal() else 0
        self._check(size, declared)
        client = "" if request.client is None else find_client(request.client.host)
        body, reserved = bytearray(), self._reserve(client, size)
        try:
            try:
                with anyio.fail_after(self._timeout):
                    async for part in request.stream():
                        self._check(len(body) + len(part), "more")
                        more = max(0, len(body) + len(part) - reserved)
                        reserved += self._reserve(client, more)
                        body += part
            except TimeoutError as error:
                raise HTTPException(
                    408, f"the request did not arrive within {self._timeout:.0f} s"
                ) from error
            except ClientDisconnect as error:
                raise HTTPException(400, "the client disconnected") from error
            yield body
        finally:
            self._reserved[client] -= reserved
            self._reserved += Counter()  # forgets addresses without bodies
            if reserved >= LARGE:
                self._trim()

    def _trim(self) -> None:
        """Return the small blocks in which a body arrived to the system: after the last body, and
        during others seldom, since the next one takes them again.
        """
        now = time.monotonic()
        if self._reserved.total() and now < self._trimmed + TRIMMING:
            return
        self._trimmed = now
        return_free_memory()

    def _check(self, size: int, found: str) -> None:
        if size > self._largest:
            raise HTTPException(413, f"expected at most {self._largest} bytes, found {found}")

    def _reserve(self, client: str, size: int) -> int:
        own, most = self._reserved[client] + size, max(self._largest, SHARE * self._total)
        if self._reserved.total() + size > self._total or own > most:
            raise HTTPException(
                503,
                f"requests of {self._reserved.total()} bytes are in progress",
                {"Retry-After": "1"},
            )
        self._reserved[client] += size
        return size
