"""The office where devices enrol: whatever it is asked, it refuses with a reason, and nobody keeps
others out.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time

import pytest

from coordinator.access import enrolment_server as offices
from coordinator.access.authority import Authority
from coordinator.access.enrolment_server import Enrolment
from federated.wire.enrolment_token import LARGEST


def asked(
    office: Enrolment, authority: Authority, method: str, path: str, body: bytes = b""
) -> tuple[int, object]:
    link = http.client.HTTPSConnection(
        "localhost",
        office.port,
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
        ("POST", "/enrol", b"x" * (LARGEST + 1), 413),
        ("POST", "/renew", b'{"request": ""}', 401),
    ],
)
def test_what_is_no_question_is_refused_and_breaks_nothing(
    office: Enrolment, authority: Authority, method: str, path: str, body: bytes, status: int
) -> None:
    assert asked(office, authority, method, path, body)[0] == status
    assert asked(office, authority, "GET", "/authority")[0] == 200


def test_who_is_slow_is_cut_off_and_keeps_nobody_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offices, "LASTING", 1.0)
    monkeypatch.setattr(offices, "OPEN", 4)
    office = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    context = ssl.create_default_context(cafile=str(authority.ca))
    try:
        slow = [
            context.wrap_socket(
                socket.create_connection(("127.0.0.1", office.port)), server_hostname="localhost"
            )
            for _ in range(4)
        ]
        for one in slow:
            one.sendall(b"POST /enrol HTTP/1.1\r\n")
        time.sleep(1.5)
        assert asked(office, authority, "GET", "/authority")[0] == 200
        for one in slow:
            one.close()
    finally:
        office.close()


def test_who_does_not_even_begin_tls_keeps_nobody_out_and_is_cut_off(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offices, "OPEN", 4)
    monkeypatch.setattr(offices, "LASTING", 2.0)
    office = Enrolment(authority, "127.0.0.1", 0, lambda: "8883")
    try:
        silent = [
            socket.create_connection(("127.0.0.1", office.port), timeout=60) for _ in range(10)
        ]
        assert asked(office, authority, "GET", "/authority")[0] == 200
        start = time.monotonic()
        assert [one.recv(1) for one in silent] == [b""] * 10
        assert time.monotonic() - start < 5
        for one in silent:
            one.close()
    finally:
        office.close()
