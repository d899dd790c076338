"""Downloads and uploads over HTTP from servers that fail, cut and lie."""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from federated.errors import Refused
from federated.http_transfers import http_client
from federated.http_transfers.http_client import HttpAccess, HttpTransfer
from federated.http_transfers.http_download import HttpDownload, WrongDigest
from federated.http_transfers.http_upload import HttpUpload
from tests.support.waiting import eventually

DATA = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(DATA).hexdigest()
Answer = Callable[[str], bytes]  # request -> everything that is sent back before the close


class RawServer:
    """Answers each connection with bytes that a test chooses, then closes it.

    asked: heads of the requests.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.asked: list[str] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                made, _ = self._socket.accept()
            except OSError:
                return
            with made:
                head = b""
                while b"\r\n\r\n" not in head and (more := made.recv(65536)):
                    head += more
                self.asked.append(head.partition(b"\r\n\r\n")[0].decode())
                try:
                    made.sendall(self._answer(self.asked[-1]))
                except OSError:
                    continue

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def serving(answer: Answer, port: int = 0) -> Iterator[RawServer]:
    server = RawServer(answer, port)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(http_client, "LONGEST_WAIT", 0.2)


def reply(status: str, body: bytes, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send_range(head: str, data: bytes = DATA, most: int | None = None) -> bytes:
    """Answer with the requested range, cut after `most` bytes."""
    asked = re.search(r"Range: bytes=(\d+)-", head)
    start = int(asked[1]) if asked else 0
    body = data[start:]
    headers = {"Content_Length": str(len(body))}
    if asked:
        headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    return reply("206 Partial Content" if asked else "200 OK", body[:most], **headers)


def fetch(url: str, part: Path, size: int = len(DATA)) -> HttpDownload:
    made = HttpDownload(HttpAccess(), url, part, DIGEST, size)
    made.start()
    return made


def end(transfer: HttpTransfer) -> None:
    eventually(lambda: not transfer.running, 30)
    transfer.stop()


def test_a_download_that_is_cut_continues_where_it_stopped(tmp_path: Path) -> None:
    with serving(lambda head: send_range(head, most=300_000)) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/weights/x", tmp_path / "p")
        end(made)
    assert made.complete
    assert (tmp_path / "p").read_bytes() == DATA
    starts = [re.search(r"bytes=(\d+)-", head) for head in server.asked]
    assert [int(one[1]) if one else 0 for one in starts] == [0, 300_000, 600_000, 900_000]


def test_a_later_process_downloads_only_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(DATA[:700_000])
    with serving(send_range) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        end(made)
    assert made.complete
    assert ["bytes=700000-" in head for head in server.asked] == [True]
    assert (tmp_path / "p").read_bytes() == DATA


def test_a_server_without_ranges_sends_everything_again(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\1" * 700_000)
    whole = reply("200 OK", DATA, Content_Length=str(len(DATA)))
    with serving(lambda head: whole) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        end(made)
    assert made.complete
    assert (tmp_path / "p").read_bytes() == DATA


def test_other_bytes_than_the_promised_ones_are_discarded(tmp_path: Path) -> None:
    with serving(lambda head: send_range(head, b"\1" * len(DATA))) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        end(made)
    assert not made.complete
    assert isinstance(made.failure, WrongDigest)
    assert (tmp_path / "p").read_bytes() == b""


def test_a_blob_of_another_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with serving(lambda head: send_range(head, DATA * 2)) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        end(made)
    assert isinstance(made.failure, Refused)
    assert re.search(r"expected 1048576 bytes, found 2097152", str(made.failure))
    assert (tmp_path / "p").read_bytes() == b""


def test_no_more_than_the_promised_bytes_are_read_from_an_endless_answer(tmp_path: Path) -> None:
    with serving(lambda head: reply("200 OK", DATA + b"\1" * 500_000)) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        end(made)
    assert made.complete
    assert (tmp_path / "p").read_bytes() == DATA


def test_a_server_that_is_gone_is_named_with_a_remedy_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(send_range) as server:
        port = server.port
    with caplog.at_level(logging.WARNING):
        made = fetch(f"http://127.0.0.1:{port}/w", tmp_path / "p")
        eventually(lambda: caplog.text)
        with serving(send_range, port):
            end(made)
    assert made.complete
    assert f"cannot reach http://127.0.0.1:{port}: connection refused; trying again" in caplog.text
    assert "check that the server (http.listen) or the store (http.store) runs" in caplog.text
    assert len(caplog.records) == 1, "once for each transfer"


def test_a_stopped_download_writes_no_more(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(head: str) -> bytes:
        begun.set()
        go.wait(30)
        return send_range(head)

    with serving(wait) as server:
        made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
        begun.wait(30)
        made.stop()
        go.set()
        made._thread.join(30)
    assert (tmp_path / "p").read_bytes() == b""
    assert (made.complete, made.running, made.failure) == (False, False, None)


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "http:///x", "http://user@h/x", "http://h:0/x", "http://h/a b", "file:x"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(Refused, match="expected an address such as https"):
        HttpUpload(HttpAccess(), url, memoryview(DATA), "w1")


def test_a_device_with_a_secure_broker_refuses_an_address_without_tls() -> None:
    with pytest.raises(Refused, match=r"must name an address with https://"):
        HttpUpload(HttpAccess(tls_only=True), "http://h/x", memoryview(DATA), "w1")


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with serving(send_range) as other:
        moved = reply("302 Found", b"", Location=f"http://127.0.0.1:{other.port}/")
        with serving(lambda head: moved) as server:
            made = fetch(f"http://127.0.0.1:{server.port}/w", tmp_path / "p")
            end(made)
    assert "answers 302" in str(made.failure)
    assert not other.asked


def test_a_wrong_proxy_of_the_device_is_a_failure_of_the_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error would end the agent when a coordinator names an address."""
    monkeypatch.setenv("http_proxy", "ftp://proxy")
    made = fetch("http://192.0.2.1/w", tmp_path / "p")
    end(made)
    assert isinstance(made.failure, Refused)
    assert "http_proxy: expected http://" in str(made.failure)
