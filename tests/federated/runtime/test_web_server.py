"""Slow clients are disconnected, and others are served."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("uvicorn")

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from federated.runtime import connection_limits
from federated.runtime.connection_limits import RateLimiter, find_client
from federated.runtime.web_server import CERTIFICATE, BodyReader, Limits, WebServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
# a request whose body lacks a byte
UNFINISHED = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{"
Start = Callable[[Limits], WebServer]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with the body's size and the client's certificate."""
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


def connect(server: WebServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((server.host, server.port), 20, (source, 0))


def is_closed(connection: socket.socket) -> bool:
    """Return True if the server closes the connection before it sends anything."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def reply(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    """Return the whole reply: headers and body may arrive separately."""
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
        connection.sendall(UNFINISHED)
        time.sleep(0.7)  # three times as long as a connection may be idle
        assert reply(connection, b"}").endswith(b"2 None")


def test_a_lifetime_ends_a_request_that_is_still_read(start: Start) -> None:
    with connect(start(Limits(8, 5.0, lifetime=0.3))) as connection:
        connection.sendall(UNFINISHED)
        assert is_closed(connection)


def test_a_new_connection_replaces_the_oldest_idle_one(start: Start) -> None:
    server = start(Limits(2, 5.0, idle=60.0))
    with connect(server) as first, connect(server) as second:
        assert b"200" in reply(first)
        assert b"200" in reply(second)
        with connect(server) as third:
            assert is_closed(first)
            assert b"200" in reply(third)
        assert b"200" in reply(second)


def test_a_silent_connection_is_replaced_before_one_that_sent_something(start: Start) -> None:
    server = start(Limits(2, 5.0, idle=60.0))
    with connect(server) as begun, connect(server) as silent:
        begun.sendall(REQUEST[:9])
        time.sleep(0.2)
        with connect(server) as third:
            assert b"200" in reply(third)
            assert is_closed(silent)
            assert b"200" in reply(begun, REQUEST[9:])


def test_a_connection_whose_request_is_read_is_not_replaced(start: Start) -> None:
    server = start(Limits(1, 5.0, idle=60.0))
    with connect(server) as busy:
        busy.sendall(UNFINISHED)
        time.sleep(0.2)
        with connect(server) as second:
            assert is_closed(second)
        assert reply(busy, b"}").endswith(b"2 None")


def test_an_address_replaces_only_its_own_connections(start: Start) -> None:
    server = start(Limits(8, 5.0, idle=60.0, per_address=2))
    with connect(server, "127.0.0.2") as other:
        with connect(server) as first, connect(server), connect(server) as third:
            assert is_closed(first)
            assert b"200" in reply(third)
        assert b"200" in reply(other)


def test_a_full_server_replaces_connections_of_the_address_with_the_most(start: Start) -> None:
    server = start(Limits(3, 5.0, idle=60.0))
    with (
        connect(server, "127.0.0.2") as honest,
        connect(server) as first,
        connect(server),
        connect(server, "127.0.0.3") as late,
    ):
        assert is_closed(first)
        assert b"200" in reply(late)
        assert b"200" in reply(honest)


def test_slow_requests_of_a_few_addresses_keep_no_other_address_out(start: Start) -> None:
    """Two addresses fill the server with requests that never end."""
    server = start(Limits(4, 5.0, idle=60.0, per_address=2))
    with contextlib.ExitStack() as stack:
        slow = []
        for source in ("127.0.0.2", "127.0.0.3") * 2:
            slow.append(stack.enter_context(connect(server, source)))
            slow[-1].sendall(UNFINISHED)
            time.sleep(0.1)
        honest = stack.enter_context(connect(server))
        assert b"200" in reply(honest)
        assert is_closed(slow[0]), "the oldest request of the largest crowd"
        honest.sendall(UNFINISHED)
        time.sleep(0.2)
        assert is_closed(stack.enter_context(connect(server, "127.0.0.2"))), "it has its share"
        assert reply(honest, b"}").endswith(b"2 None")


def test_connections_beyond_the_rate_of_an_address_are_closed(start: Start) -> None:
    server = start(Limits(8, 5.0, idle=60.0, rate=1.0))
    for expected in (False, False, True):
        with connect(server) as connection:
            connection.sendall(REQUEST)
            assert is_closed(connection) is expected
    with connect(server, "127.0.0.2") as other:
        assert b"200" in reply(other)


def test_requests_beyond_the_rate_of_a_client_are_answered_with_429(start: Start) -> None:
    with connect(start(Limits(8, 5.0, idle=60.0, requests=1.0))) as connection:
        for _ in range(2):
            assert b"HTTP/1.1 200" in reply(connection)
        connection.sendall(REQUEST)
        with connection.makefile("rb") as answer:
            found = answer.read()  # to its end: the server closes the connection
        assert b"HTTP/1.1 429" in found
        assert b"retry-after: 1" in found.lower()


def test_connections_are_limited_by_the_descriptors_of_the_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "get_descriptor_limit", lambda: 40)
    server = start(Limits(100, 5.0, idle=60.0))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(11)]  # a quarter is 10
        assert is_closed(connections[0])
        assert b"200" in reply(connections[1])


def test_a_rate_limiter_allows_bursts_of_two_seconds() -> None:
    limiter = RateLimiter(2.0)
    assert [limiter.wait("a", 10.0) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limiter.wait("b", 10.0) == 0
    assert [limiter.wait("a", now) for now in (10.4, 10.5, 10.5)] == [pytest.approx(0.1), 0, 0.5]


def test_a_rate_limiter_forgets_the_client_that_was_away_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "KEYS", 2)
    limiter = RateLimiter(0.5)
    assert [limiter.wait(key, 0.0) for key in "abab"] == [0, 0, 2, 2]
    assert [limiter.wait(key, 0.0) for key in "cba"] == [0, 2, 0]


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_network_of_ipv6_counts_as_one_client(host: str, client: str) -> None:
    assert find_client(host) == client


def make_request(host: str, size: int) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(size)}

    headers = [(b"content-length", str(size).encode())]
    return Request({"type": "http", "client": (host, 1), "headers": headers}, receive)


def test_bodies_of_one_address_leave_memory_for_others() -> None:
    bodies = BodyReader(largest=10, total=16, timeout=5.0)
    ours, others = "192.0.2.1", "192.0.2.2"

    async def read() -> None:
        async with bodies.read(make_request(ours, 10)):
            with pytest.raises(HTTPException, match="503"):
                async with bodies.read(make_request(ours, 3)):
                    pass
            async with bodies.read(make_request(others, 6)) as body:
                assert len(body) == 6
                with pytest.raises(HTTPException, match="503"):
                    async with bodies.read(make_request(others, 1)):
                        pass
        async with bodies.read(make_request(ours, 10)) as body:
            assert len(body) == 10

    anyio.run(read)


def test_an_address_in_use_is_an_error_of_the_system(start: Start) -> None:
    server = start(Limits(8, 5.0))
    with pytest.raises(OSError, match="in use"):
        WebServer(app, (server.host, server.port), Limits(8, 5.0))


def test_a_closed_server_refuses_connections(start: Start) -> None:
    server = start(Limits(8, 5.0))
    server.close()
    with pytest.raises(ConnectionError):
        connect(server)
