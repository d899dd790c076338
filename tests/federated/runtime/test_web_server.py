"""Slow clients lose their connection, and others are served."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("uvicorn")

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from federated.runtime.web_server import CERTIFICATE, Limits, WebServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Start = Callable[[Limits], WebServer]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Replies with the body's size and the client's certificate."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} {scope[CERTIFICATE]}")(scope, receive, send)


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def make(limits: Limits) -> WebServer:
            server = WebServer(app, ("127.0.0.1", 0), limits)
            stack.callback(server.close)
            return server

        yield make


def connect(server: WebServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection before it sends anything."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def reply(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    """The whole reply: headers and body may arrive one after the other."""
    connection.sendall(request)
    found = b""
    while not found.endswith(b" None"):
        part = connection.recv(1000)
        assert part, f"closed after {found!r}"
        found += part
    return found


def test_several_requests_share_a_connection(start: Start) -> None:
    with connect(start(Limits(8, 5.0, idle=60.0))) as connection:
        for _ in range(2):
            found = reply(connection)
            assert found.startswith(b"HTTP/1.1 200")
            assert found.endswith(b"0 None")


def test_a_connection_is_closed_when_no_request_begins(start: Start) -> None:
    server = start(Limits(8, 5.0, idle=0.2))
    with connect(server) as silent, connect(server) as slow, connect(server) as finished:
        slow.sendall(REQUEST[:9])
        assert b"200" in reply(finished)
        assert all(map(is_closed, (silent, slow, finished)))


def test_a_connection_lasts_while_its_request_is_read(start: Start) -> None:
    with connect(start(Limits(8, 5.0, idle=0.2))) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{")
        time.sleep(0.7)  # three times as long as a connection may be idle
        assert reply(connection, b"}").endswith(b"2 None")


def test_a_lifetime_ends_a_request_that_is_still_read(start: Start) -> None:
    with connect(start(Limits(8, 5.0, lifetime=0.3))) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{")
        assert is_closed(connection)


def test_a_full_server_closes_the_newest_connection(start: Start) -> None:
    server = start(Limits(1, 5.0, idle=60.0))
    with connect(server) as first:
        assert b"200" in reply(first)
        with connect(server) as second:
            assert is_closed(second)
        assert b"200" in reply(first)


def test_with_a_lifetime_a_full_server_closes_the_oldest_connection(start: Start) -> None:
    server = start(Limits(1, 5.0, lifetime=60.0))
    with connect(server) as first, connect(server) as second:
        assert is_closed(first)
        assert b"200" in reply(second)


def test_an_address_in_use_is_an_error_of_the_system(start: Start) -> None:
    server = start(Limits(8, 5.0))
    with pytest.raises(OSError, match="in use"):
        WebServer(app, (server.host, server.port), Limits(8, 5.0))


def test_a_closed_server_refuses_connections(start: Start) -> None:
    server = start(Limits(8, 5.0))
    server.close()
    with pytest.raises(ConnectionError):
        connect(server)
