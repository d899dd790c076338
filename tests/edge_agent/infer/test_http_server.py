"""The HTTP server answers concurrent requests, names the release, and rejects invalid requests
with a reason.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")

from edge_agent.infer import http_server as serving
from edge_agent.infer.engine import Answered, Engine
from edge_agent.infer.http_server import HttpServer
from edge_agent.infer.requests_and_replies import describe_state
from federated.errors import ConfigError, UsageError
from federated.runtime.listen_address import ListenAddress, parse_listen_address
from tests.support.handmade_variants import NAME, several
from tests.support.waiting import eventually

HERE = ListenAddress("127.0.0.1", 0, True)
JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/x-npy"}


def call(
    url: str, path: str, data: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Return the status and JSON of a response."""
    request = urllib.request.Request(url + path, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else text.decode()


def npy(x: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("edge_agent.infer.graph_trial.SECONDS", 0.02)
    made = Engine(None, threads=1)
    made.adopt(several(tmp_path / "release", ("fp32",), classes=("cat", "dog")), NAME)
    return made


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def server(engine: Engine) -> Iterator[HttpServer]:
    made = HttpServer(engine, HERE, lambda: describe_state(engine))
    yield made
    made.close()


def test_json_and_arrays_are_answered_with_the_release(server: HttpServer, engine: Engine) -> None:
    assert engine.choice is not None
    wanted = {
        "version": engine.choice.version,
        "run": "spring",
        "round": 7,
        "submodel": NAME,
        "variant": "fp32",
        "threads": 1,
    }
    for body, headers in (
        (b'{"inputs": [[2, 1], [0, 0]]}', JSON),
        (npy([[2, 1], [0, 0]]), NPY),
        (b'{"inputs":[[2,1],[0,0]]}', {**JSON, "X": "y"}),
    ):
        status, found = call(server.url, "/infer", body, headers)
        assert status == 200
        assert wanted.items() <= found.items()
        assert [(one["label"], one["name"]) for one in found["answers"]] == [(0, "cat"), (0, "cat")]
    assert call(server.url, "/infer", b'{"inputs": [2, 1]}', JSON)[1]["answers"][0][
        "confidence"
    ] == pytest.approx(0.9526, abs=1e-4)


def test_health_and_release_describe_the_service(server: HttpServer, engine: Engine) -> None:
    assert engine.choice is not None
    assert call(server.url, "/health") == (
        200,
        {"status": "ok", "version": engine.choice.version} | call(server.url, "/health")[1],
    )
    call(server.url, "/infer", b'{"inputs": [2, 1]}', JSON)
    status, found = call(server.url, "/release")
    assert (status, found["state"], found["answered"], found["failed"]) == (200, "serving", 1, 0)
    assert found["tried"][0]["kind"] == "fp32"
    assert found["refused"] is None


def test_without_a_release_health_is_waiting() -> None:
    server = HttpServer(Engine(None), HERE, lambda: {})
    try:
        assert call(server.url, "/health") == (503, {"status": "waiting"})
        assert call(server.url, "/infer", b'{"inputs": [1]}', JSON) == (
            503,
            {"error": "no release has arrived yet"},
        )
    finally:
        server.close()


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{", JSON, 422, "expected JSON"),
        (b"[[2, 1]]", JSON, 422, "Expected `object`, got `array`"),
        (b'{"input": [2, 1]}', JSON, 422, "missing required field `inputs`"),
        (b'{"inputs": [[2, 1], [3]]}', JSON, 422, "expected lists of one shape"),
        (
            b'{"inputs": [[2, 1, 0]]}',
            JSON,
            422,
            "expected raw examples of shape [n, 2], found [1, 3]",
        ),
        (b'{"inputs": [[2, 300]]}', JSON, 422, "expected whole numbers from 0 to 255"),
        (
            b'{"inputs": ' + b"[" * 50 + b"]" * 50 + b"}",
            JSON,
            422,
            "got `array` - at `$.inputs[0][0][0][0][0]`",
        ),
        (
            b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
            JSON,
            422,
            "found about 1 numbers in 5000 lists",
        ),
        (b'{"inputs": {"a": 1}}', JSON, 422, "got `object` - at `$.inputs`"),
        # 500 MB as an array
        (
            json.dumps({"inputs": ["a" * 500_000, *[""] * 500]}).encode(),
            JSON,
            422,
            "got `str` - at `$.inputs[0]`",
        ),
        (npy([[2, 1]]).replace(b"(1, 2)", b"(1, 2["), NPY, 422, "expected a .npy file"),
        (npy([[2, 1]])[:-1], NPY, 422, "for the header's shape"),
        (
            b'{"inputs": [[2, 1]]}',
            {"Content-Type": "text/plain"},
            415,
            "expected the content type application/json",
        ),
        (
            npy(np.zeros((257, 2), np.uint8)),
            NPY,
            422,
            "expected at most 256 examples at a time, found 257",
        ),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(
    server: HttpServer, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    code, found = call(server.url, "/infer", body, headers)
    assert code == status
    assert message in found["error"]


def test_unknown_paths_and_methods_are_refused(server: HttpServer) -> None:
    assert call(server.url, "/other") == (404, {"error": "Not Found"})
    assert call(server.url, "/infer")[0] == 405


def test_a_body_that_is_too_large_is_not_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(serving, "MAX_BYTES", 1000)
    server = stack.enter_context(contextlib.closing(HttpServer(engine, HERE, lambda: {})))
    code, found = call(server.url, "/infer", b" " * 2000, JSON)
    assert (code, found) == (413, {"error": "expected at most 1000 bytes, found 2000"})
    host, port = server.url.removeprefix("http://").split(":")
    # without a length: a part at a time
    with socket.create_connection((host, int(port)), 5) as link:
        link.sendall(
            b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        link.sendall(b"%x\r\n%s\r\n" % (2000, b" " * 2000))
        assert b"413" in link.recv(100)


def test_slow_request_times_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(serving, "BODY_TIMEOUT", 0.2)
    server = stack.enter_context(contextlib.closing(HttpServer(engine, HERE, lambda: {})))
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as link:
        link.sendall(
            b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99\r\n\r\n{"
        )
        assert b" 408 " in link.recv(200)


@pytest.mark.parametrize(
    "begun", [b"", b"POST /inf", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_idle_connection_is_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(serving, "BODY_TIMEOUT", 0.2)
    server = HttpServer(engine, HERE, lambda: {})
    try:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 10) as link:
            link.sendall(begun)
            ended = b""
            with contextlib.suppress(ConnectionResetError):
                while part := link.recv(1000):
                    ended += part
            assert ended.startswith(b"HTTP/1.1 200" if begun.endswith(b"\n") else b"")
    finally:
        server.close()


def test_requests_beyond_the_memory_for_bodies_are_refused_with_retry_after(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    """Memory is reserved when the headers have arrived, and is free again after the answer."""
    monkeypatch.setattr(serving, "MAX_BODIES", 1000)
    server = stack.enter_context(contextlib.closing(HttpServer(engine, HERE, lambda: {})))
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"inputs": [2, 1]}'.ljust(990)
    links: list[socket.socket] = []

    def hold_back() -> bool:
        """Send headers without the body, on a new connection, since the server closes slow ones."""
        for link in links:
            link.close()
        links[:] = [stack.enter_context(socket.create_connection((host, int(port)), 10))]
        links[0].sendall(
            b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 990\r\n\r\n"
        )
        return call(server.url, "/infer", body, JSON)[0] == 503

    eventually(hold_back)
    request = urllib.request.Request(f"{server.url}/infer", body, JSON)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.headers["Retry-After"] == "1"
    refused.value.close()
    links[0].sendall(body)
    assert links[0].recv(12) == b"HTTP/1.1 200"
    assert call(server.url, "/infer", body, JSON)[0] == 200


def test_the_token_is_checked_before_the_body_is_read(
    engine: Engine, stack: contextlib.ExitStack
) -> None:
    server = HttpServer(engine, HERE, lambda: {}, "a-secret-of-enough-letters")
    stack.callback(server.close)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as link:
        link.sendall(
            b"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n"
        )
        assert link.recv(12) == b"HTTP/1.1 401"


def test_excess_connections_are_closed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 2)
    server = HttpServer(engine, HERE, lambda: {})
    try:
        host, port = server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), 10) as first,
            socket.create_connection((host, int(port)), 10) as second,
        ):
            assert call(server.url, "/health")[0] == 200
            assert first.recv(1) == b""
            second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(12) == b"HTTP/1.1 200"
    finally:
        server.close()


def test_host_header_must_match_the_address(engine: Engine) -> None:
    server = HttpServer(engine, parse_listen_address("127.0.0.2:0", "--serve", "8080"), lambda: {})
    try:
        assert call(server.url, "/health")[0] == 200
        assert call(server.url, "/health", headers={"Host": "evil.example"})[0] == 400
    finally:
        server.close()


def test_foreign_host_header_is_refused(server: HttpServer) -> None:
    assert call(server.url, "/release", headers={"Host": "evil.example"})[0] == 400
    assert call(server.url, "/release", headers={"Host": "localhost:99"})[0] == 200


def test_token_is_required_if_set(engine: Engine) -> None:
    server = HttpServer(engine, HERE, lambda: describe_state(engine), "a-secret-of-enough-letters")
    try:
        for headers in (
            {},
            {"Authorization": "Bearer other"},
            {"Authorization": "a-secret-of-enough-letters"},
            {"Authorization": "Bearer \xe9"},
        ):
            assert call(server.url, "/infer", b'{"inputs": [2, 1]}', {**JSON, **headers})[0] == 401
            assert call(server.url, "/release", headers=headers)[0] == 401
        known = {"Authorization": "Bearer a-secret-of-enough-letters"}
        assert call(server.url, "/infer", b'{"inputs": [2, 1]}', {**JSON, **known})[0] == 200
        assert call(server.url, "/health")[0] == 200
    finally:
        server.close()


def test_remote_address_requires_a_token(engine: Engine) -> None:
    with pytest.raises(
        UsageError,
        match=r"--serve 0\.0\.0\.0: other machines .* --token-file",
    ):
        HttpServer(engine, parse_listen_address("0.0.0.0:0", "--serve", "8080"), lambda: {})


def test_occupied_port_is_named(server: HttpServer, engine: Engine) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"--serve 127.0.0.1:{port}: Address already in use"):
        HttpServer(engine, ListenAddress("127.0.0.1", port, True), lambda: {})


class Slow(Engine):
    """An engine that answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__(None)
        self.let, self.asked = threading.Event(), threading.Semaphore(0)

    def answer(self, value: Any, name: str = "", most: int | None = None) -> Answered:
        self.asked.release()
        assert self.let.wait(60)
        return super().answer(value, name, most)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr("edge_agent.infer.graph_trial.SECONDS", 0.02)
    made = Slow()
    made.adopt(several(tmp_path / "release", ("fp32",)), NAME)
    return made


def asking(url: str, replies: list[tuple[int, Any]]) -> threading.Thread:
    thread = threading.Thread(
        target=lambda: replies.append(call(url, "/infer", b'{"inputs": [2, 1]}', JSON))
    )
    thread.start()
    return thread


def test_concurrent_requests_are_limited_with_retry_after(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    server, replies = HttpServer(slow, HERE, lambda: {}), list[tuple[int, Any]]()
    try:
        threads = [asking(server.url, replies) for _ in range(serving.CONCURRENT)]
        assert all(slow.asked.acquire(timeout=60) for _ in range(serving.CONCURRENT)), (
            "all of them are at work at the same time"
        )
        threads += [asking(server.url, replies) for _ in range(2)]
        until = time.monotonic() + 60
        while not any(status == 503 for status, _ in replies) and time.monotonic() < until:
            threads.append(asking(server.url, replies))
            time.sleep(0.05)
        assert (503, {"error": "2 requests are already waiting"}) in replies
        slow.let.set()
        for thread in threads:
            thread.join()
        assert sum(status == 200 for status, _ in replies) == serving.CONCURRENT + 2
    finally:
        slow.let.set()
        server.close()


def test_closing_completes_running_requests(slow: Slow) -> None:
    server, replies = HttpServer(slow, HERE, lambda: {}), list[tuple[int, Any]]()
    asker = asking(server.url, replies)
    assert slow.asked.acquire(timeout=60)
    closing = threading.Thread(target=server.close)
    closing.start()
    time.sleep(0.2)
    slow.let.set()
    closing.join(60)
    asker.join(60)
    assert replies[0][0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 1)


def test_failing_network_is_a_server_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the device went away")

    server = HttpServer(engine, HERE, lambda: describe_state(engine))
    try:
        monkeypatch.setattr("edge_agent.infer.engine.answer", fail)
        status, found = call(server.url, "/infer", b'{"inputs": [2, 1]}', JSON)
        assert status == 500
        assert "failed: the device went away" in found["error"]
        assert call(server.url, "/release")[1]["failed"] == 1
    finally:
        server.close()
