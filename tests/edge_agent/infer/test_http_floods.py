"""The inference server answers and limits its memory during a flood."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from tests.support.connection_flood import open_silent, resident, start_flood
from tests.support.handmade_variants import NAME, several
from tests.support.processes import (
    WITHOUT_TORCH,
    Running,
    Start,
    read_address,
    start_processes,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.processes]

GOOD = b'{"inputs": [2, 1]}'
TOKEN = "a-secret-of-enough-letters"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Running]]:
    """The port and the process of a server without a token."""
    folder = tmp_path_factory.mktemp("server")
    several(folder / "release", ("fp32",))
    words = ["infer", "--model", "release", "--submodel", NAME, "--threads", "1"]
    with start_processes(folder) as start:
        process = start(*WITHOUT_TORCH, *words, "--serve", "127.0.0.1:0")
        yield int(read_address(folder / "0.err").rpartition(":")[2]), process


def post(port: int, body: bytes = GOOD, more: bytes = b"") -> bytes:
    """Return the status of the answer, empty if the connection was closed."""
    head = (
        b"POST /infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\n%sContent-Length: %d\r\n\r\n" % (more, len(body))
    )
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        try:
            link.sendall(head + body)
            return b"".join(iter(lambda: link.recv(65536), b""))[9:12]
        except ConnectionError:
            return b""


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_silent_connections_do_not_block_requests(server: tuple[int, Running], source: str) -> None:
    with open_silent(server[0], 300, source):
        start = time.monotonic()
        assert post(server[0]) == b"200"
        took = time.monotonic() - start
    print(f"answered in {took:.2f} s beside 300 silent connections")
    assert took < 5


def test_requests_are_answered_while_others_connect_and_hang_up(
    server: tuple[int, Running],
) -> None:
    with start_flood(server[0]) as flood:
        eventually(lambda: flood.connections > 200)
        assert [post(server[0]) for _ in range(10)] == [b"200"] * 10


@pytest.mark.parametrize("number", [b"[]", b"1.5", b"300"])
def test_large_requests_at_once_take_little_memory(
    server: tuple[int, Running], number: bytes
) -> None:
    """36 requests of 8 MB; memory is back within 8 MB, 10 %, five seconds later."""
    port, process = server
    body = b'{"inputs":[' + (number + b",") * (8_300_000 // (len(number) + 1)) + number + b"]}"
    assert post(port) == b"200"
    base, peak, done = resident(process.pid), 0.0, Counter[bytes]()

    threads = [threading.Thread(target=lambda: done.update([post(port, body)])) for _ in range(36)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, resident(process.pid))
        time.sleep(0.02)
    assert done[b"422"] >= 1
    assert done[b"422"] + done[b"503"] == 36
    assert post(port) == b"200"
    until = time.monotonic() + 5
    while (after := resident(process.pid)) > base + 8 and time.monotonic() < until:
        time.sleep(0.1)
    print(f"{dict(done)}: {base:.0f} MB before, {peak:.0f} at most, {after:.0f} afterwards")
    assert peak <= base + 64
    assert after <= base + 8


def test_requests_without_the_token_take_no_memory_and_no_place(
    start: Start, tmp_path: Path
) -> None:
    several(tmp_path / "release", ("fp32",))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    words = ["infer", "--model", "release", "--submodel", NAME, "--threads", "1"]
    process = start(
        *WITHOUT_TORCH, *words, "--serve", "127.0.0.1:0", "--token-file", str(tmp_path / "token")
    )
    port = int(read_address(tmp_path / "0.err").rpartition(":")[2])
    base, body = resident(process.pid), b" " * (8 << 20)
    threads = [threading.Thread(target=post, args=(port, body)) for _ in range(36)]
    for thread in threads:
        thread.start()
    assert post(port, more=b"Authorization: Bearer %s\r\n" % TOKEN.encode()) == b"200"
    for thread in threads:
        thread.join()
    assert resident(process.pid) < base + 32
