"""A web server in a thread of its own, with limits on connections that uvicorn does not have.

It subclasses uvicorn's HTTP/1.1 protocol, which uvicorn may change in any version. Hence
pyproject.toml caps the version: raise the cap after this module's tests pass with the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["CERTIFICATE", "Limits", "WebServer"]

BACKLOG = 128  # connections that the kernel keeps until they are accepted
CERTIFICATE = "espalier.certificate"  # in a request's scope: the client's (DER), or None


@dataclass(frozen=True)
class Limits:
    """Limits of a server, so that slow clients cannot keep others out.

    connections: open at a time. Beyond that, a new connection is closed; with `lifetime`, the
    oldest is closed instead.
    farewell: seconds that open requests have to finish when the server closes.
    idle: seconds in which a request must begin, else the connection is closed; None: unlimited.
    lifetime: seconds of a connection, TLS handshake included; None: unlimited.
    """

    connections: int
    farewell: float
    idle: float | None = None
    lifetime: float | None = None


class WebServer:
    """Serve an ASGI application until `close`."""

    def __init__(
        self,
        app: ASGIApp,
        address: tuple[str, int],
        limits: Limits,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen, and return when requests are served.

        address: host and port; port 0 for any free one. tls: serve HTTPS with this context, which
        may load another certificate later. Raises OSError if the address cannot be used.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = Listener(family, limits)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self.host: str = self._socket.getsockname()[0]
        self.port: int = self._socket.getsockname()[1]
        self._farewell = limits.farewell
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=protocol(limits),
            ws="none",
            lifespan="off",
            server_header=False,
            log_config=None,
            access_log=False,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
            timeout_graceful_shutdown=int(limits.farewell),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="web-server", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    def close(self) -> None:
        """Accept no more requests, and wait for open ones, up to `Limits.farewell` seconds."""
        self._server.should_exit = True
        self._thread.join(self._farewell + 5)
        with contextlib.suppress(OSError):
            self._socket.close()


class Listener(socket.socket):
    """A listening socket that closes each connection after `Limits.lifetime`. A protocol cannot do
    that, because it starts only after the TLS handshake.
    """

    def __init__(self, family: int, limits: Limits) -> None:
        super().__init__(family)
        self._limits = limits
        self._open: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        if self._limits.lifetime is not None:
            self._open = [one for one in self._open if one.fileno() >= 0]
            while len(self._open) >= self._limits.connections:
                shut_down(self._open.pop(0))
            self._open.append(made)
            asyncio.get_running_loop().call_later(self._limits.lifetime, shut_down, made)
        return made, address


def shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        connection.shutdown(socket.SHUT_RDWR)


def protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits, and with the client's certificate in each request."""

    class Limited(H11Protocol):
        # The type of `transport` is that of uvicorn's method.
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            secure = transport.get_extra_info("ssl_object")
            shown = None if secure is None else secure.getpeercert(True)
            self.app = with_certificate(self.app, shown)
            self._idle = self._end = None
            if limits.idle is not None:
                self._idle = self.loop.call_later(limits.idle, self._close_idle, None)
            if limits.lifetime is not None:
                # Where reading is paused, asyncio does not see that `Listener` shut the socket.
                self._end = self.loop.call_later(limits.lifetime, transport.abort)
            elif len(self.connections) > limits.connections:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._idle, self._end):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _close_idle(self, before: object) -> None:
            """Close the connection if no request began since the last call.

            before: the latest request at the last call.
            """
            if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
                self.transport.abort()
            elif limits.idle is not None:
                self._idle = self.loop.call_later(limits.idle, self._close_idle, self.cycle)

    return Limited


def with_certificate(app: ASGIApp, certificate: bytes | None) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[CERTIFICATE] = certificate
        await app(scope, receive, send)

    return call
