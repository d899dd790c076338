"""The enrolment server: it refuses bad requests with a reason, and slow clients block no others."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time

import pytest

from coordinator.access import enrolment_server as enrolment_server
from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server import EnrolmentServer
from federated.wire.enrolment_token import LARGEST


def ask(
    enrolment: EnrolmentServer, authority: Authority, method: str, path: str, body: bytes = b""
) -> tuple[int, object]:
    link = http.client.HTTPSConnection(
        "localhost",
        enrolment.port,
        timeout=60,
        context=ssl.create_default_context(cafile=str(authority.ca)),
    )
    link.request(method, path, body)
    answer = link.getresponse()
    found = answer.read()
    link.close()
    try:
        return answer.status, json.loads(found).get("error")
    except ValueError:
        return answer.status, None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/enrol", b"", 405),
        ("POST", "/enrol", b"", 400),
        ("POST", "/enrol", b"[" * 10_000, 400),
        ("POST", "/enrol", b'{"secret": "zz", "request": ""}', 400),
        ("POST", "/enrol", b'{"secret": "' + b"00" * 16 + b'", "request": ""}', 403),
        ("POST", "/claim", b'{"secret": "' + b"00" * 16 + b'", "request": ""}', 403),
        ("POST", "/enrol", b"x" * (LARGEST + 1), 413),
        ("POST", "/renew", b'{"request": ""}', 401),
    ],
)
def test_a_bad_request_is_refused_and_the_server_continues(
    enrolment: EnrolmentServer,
    authority: Authority,
    method: str,
    path: str,
    body: bytes,
    status: int,
) -> None:
    assert ask(enrolment, authority, method, path, body)[0] == status
    assert ask(enrolment, authority, "GET", "/authority")[0] == 200


def test_slow_clients_are_disconnected_and_block_no_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment_server, "CONNECTION_TIMEOUT", 1.0)
    monkeypatch.setattr(enrolment_server, "MAX_CONNECTIONS", 4)
    enrolment = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
    context = ssl.create_default_context(cafile=str(authority.ca))
    try:
        slow = [
            context.wrap_socket(
                socket.create_connection(("127.0.0.1", enrolment.port)), server_hostname="localhost"
            )
            for _ in range(4)
        ]
        for one in slow:
            one.sendall(b"POST /enrol HTTP/1.1\r\n")
        time.sleep(1.5)
        assert ask(enrolment, authority, "GET", "/authority")[0] == 200
        for one in slow:
            one.close()
    finally:
        enrolment.close()


def test_slow_requests_of_two_addresses_keep_no_device_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections of the server carry a request whose body never ends."""
    monkeypatch.setattr(enrolment_server, "CONNECTION_TIMEOUT", 60.0)
    monkeypatch.setattr(enrolment_server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(enrolment_server, "MAX_PER_ADDRESS", 4)
    enrolment = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
    context = ssl.create_default_context(cafile=str(authority.ca))
    with contextlib.closing(enrolment), contextlib.ExitStack() as stack:
        start = time.monotonic()
        for source in ("127.0.0.2", "127.0.0.3") * 4:
            plain = socket.create_connection(("127.0.0.1", enrolment.port), 60, (source, 0))
            slow = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            length = f"Content-Length: {LARGEST}\r\n\r\n{{"
            slow.sendall(f"POST /enrol HTTP/1.1\r\nHost: localhost\r\n{length}".encode())
        time.sleep(0.5)
        wrong = b'{"secret": "' + b"00" * 16 + b'", "request": ""}'
        assert ask(enrolment, authority, "POST", "/enrol", wrong)[0] == 403, "it was read"
        assert time.monotonic() - start < 50


def test_clients_that_never_start_tls_are_disconnected_and_block_no_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment_server, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(enrolment_server, "CONNECTION_TIMEOUT", 2.0)
    enrolment = EnrolmentServer(authority, ("127.0.0.1", 0), "8883")
    try:
        silent = [
            socket.create_connection(("127.0.0.1", enrolment.port), timeout=60) for _ in range(10)
        ]
        assert ask(enrolment, authority, "GET", "/authority")[0] == 200
        start = time.monotonic()
        assert [one.recv(1) for one in silent] == [b""] * 10
        assert time.monotonic() - start < 5
        for one in silent:
            one.close()
    finally:
        enrolment.close()
