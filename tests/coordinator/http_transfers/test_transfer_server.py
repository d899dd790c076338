"""The server of HTTP transfers gives weights to those who know their digest, and takes each update
only from those who know its address.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path, PurePosixPath

import pytest

from coordinator.access.certificate_authority import Authority
from coordinator.http_transfers import transfer_server
from coordinator.http_transfers.transfer_server import TransferServer
from coordinator.http_transfers.transfer_urls import TransferUrls
from coordinator.web_certificate import load_certificate
from federated.http_transfers import http_client
from federated.http_transfers.http_client import HttpAccess, HttpTransfer
from federated.http_transfers.http_download import HttpDownload
from federated.http_transfers.http_upload import OFFSET, HttpUpload
from tests.support.waiting import eventually

DATA = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(DATA).hexdigest()
SECRET = b"s" * 32
PLACE = PurePosixPath("round-000001/0123456789abcdef.update.part")
OTHER = PurePosixPath("round-000001/fedcba9876543210.update.part")


class Site:
    """A served folder, with an expected update of each of two agents."""

    def __init__(self, spool: Path, server: TransferServer, scheme: str = "http") -> None:
        self.spool, self.server = spool, server
        self.urls = TransferUrls(f"{scheme}://127.0.0.1:{server.port}", SECRET)
        (spool / PLACE.parent).mkdir()
        for place in (PLACE, OTHER):
            (spool / place).touch()
        (spool / f"{DIGEST}.weights").write_bytes(DATA)

    def ask(
        self, method: str, url: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the body of an answer."""
        with closing(HTTPConnection("127.0.0.1", self.server.port, timeout=30)) as link:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            link.request(method, url.removeprefix(self.urls.base), body, given)
            with link.getresponse() as answer:
                found = {name.lower(): value for name, value in answer.getheaders()}
                return answer.status, found, answer.read()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(TransferServer(tmp_path, SECRET, ("127.0.0.1", 0))) as server:
        yield Site(tmp_path, server)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.05)


def end(transfer: HttpTransfer) -> HttpTransfer:
    transfer.start()
    eventually(lambda: not transfer.running, 30)
    transfer.stop()
    return transfer


def send(url: str, data: bytes = DATA) -> HttpTransfer:
    return end(HttpUpload(HttpAccess(), url, memoryview(data), "w1"))


def test_weights_are_downloaded_from_where_a_download_stopped(site: Site, tmp_path: Path) -> None:
    (part := tmp_path / "part").write_bytes(DATA[:400_000])
    url = site.urls.find_weights(DIGEST)
    assert end(HttpDownload(HttpAccess(), url, part, DIGEST, len(DATA))).complete
    assert part.read_bytes() == DATA
    status, headers, body = site.ask("GET", url, Range="bytes=1048570-")
    assert (status, body) == (206, DATA[-6:])
    assert headers["content-range"] == "bytes 1048570-1048575/1048576"
    assert "immutable" in headers["cache-control"], "a CDN may keep it"


@pytest.mark.parametrize("name", ["0" * 64, "..%2Fsecret", "x", DIGEST[:-1]])
def test_nothing_but_weights_is_served(site: Site, name: str) -> None:
    (site.spool / "secret.weights").write_bytes(b"secret")
    assert site.ask("GET", f"/weights/{name}")[0] == 404


def test_a_page_of_another_site_may_use_an_address(site: Site) -> None:
    """The phones' page has another origin than the server."""
    url = site.urls.name_update(PLACE, len(DATA))
    asked = {
        "Access_Control_Request_Method": "PUT",
        "Access_Control_Request_Headers": "content-range",
    }
    status, headers, _ = site.ask("OPTIONS", url, Origin="http://phone", **asked)
    assert status == 200
    assert headers["access-control-allow-origin"] == "*"
    assert "content-range" in headers["access-control-allow-headers"].lower()
    status, headers, _ = site.ask("HEAD", url, Origin="http://phone")
    assert (status, headers["access-control-allow-origin"]) == (204, "*")
    assert OFFSET in headers["access-control-expose-headers"]
    forged = url.replace("key=", "key=0")
    status, headers, _ = site.ask("HEAD", forged, Origin="http://phone")
    assert (status, headers["access-control-allow-origin"]) == (403, "*"), "a page reads the status"


def test_an_update_is_uploaded_from_where_an_upload_stopped(site: Site) -> None:
    (site.spool / PLACE).write_bytes(DATA[:400_000])
    assert send(site.urls.name_update(PLACE, len(DATA))).complete
    assert (site.spool / PLACE).read_bytes() == DATA


def test_only_what_is_transferred_is_counted(site: Site, tmp_path: Path) -> None:
    access, size = HttpAccess(), len(DATA)
    (site.spool / PLACE).write_bytes(DATA[:400_000])
    url = site.urls.name_update(PLACE, size)
    assert end(HttpUpload(access, url, memoryview(DATA), "w1")).complete
    assert access.transferred.total == size - 400_000
    (part := tmp_path / "part").write_bytes(DATA[:700_000])
    url = site.urls.find_weights(DIGEST)
    assert end(HttpDownload(access, url, part, DIGEST, size)).complete
    assert access.transferred.total == 2 * size - 1_100_000


def test_an_update_with_the_key_of_another_one_is_refused(site: Site) -> None:
    own, other = (site.urls.name_update(one, len(DATA)) for one in (PLACE, OTHER))
    forged = f"{other.partition('?')[0]}?{own.partition('?')[2]}"
    larger = own.replace(f"size={len(DATA)}", f"size={len(DATA) * 9}")
    keyless = own.partition("?")[0]
    for url in (forged, larger, keyless, own[:-1], f"{keyless}?size=1&key=%ff"):
        assert "403" in str(send(url).failure)
        assert site.ask("PUT", url, DATA)[0] == 403
    assert (site.spool / OTHER).read_bytes() == (site.spool / PLACE).read_bytes() == b""


def test_an_update_that_is_not_expected_is_refused_and_makes_no_file(site: Site) -> None:
    (site.spool / PLACE).unlink()
    url = site.urls.name_update(PLACE, len(DATA))
    assert "not expected any more" in str(site.ask("PUT", url, DATA)[2])
    assert "404" in str(send(url).failure)
    assert not (site.spool / PLACE).exists()


def connect(site: Site, method: str, url: str, *headers: str) -> socket.socket:
    """Send the head of a request, and return its connection."""
    made = socket.create_connection(("127.0.0.1", site.server.port), 30)
    target = url.removeprefix(site.urls.base)
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers, "", ""]
    made.sendall("\r\n".join(lines).encode())
    return made


def test_bytes_of_an_update_that_is_not_expected_any_more_do_not_fill_the_disk(site: Site) -> None:
    """An open file keeps its room after it was removed, as long as the agent sends slowly."""
    url, path = site.urls.name_update(PLACE, len(DATA)), site.spool / PLACE
    with connect(site, "PUT", url, f"Content-Length: {len(DATA)}") as link:
        link.sendall(DATA[:1000])
        eventually(lambda: path.stat().st_size == 1000)
        with path.open("rb") as kept:
            path.unlink()
            link.sendall(DATA[1000:2000])
            assert b" 404 " in link.recv(100)
            assert len(kept.read()) == 1000


def test_a_connection_ends_and_a_download_goes_on_over_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who read slowly must not keep the room of removed weights for ever."""
    monkeypatch.setattr(transfer_server, "LIFETIME", 0.5)
    with closing(TransferServer(tmp_path, SECRET, ("127.0.0.1", 0))) as server:
        site = Site(tmp_path, server)
        larger = DATA * 32  # more than the buffers of a connection
        digest = hashlib.sha256(larger).hexdigest()
        (tmp_path / f"{digest}.weights").write_bytes(larger)
        url = site.urls.find_weights(digest)
        part = tmp_path / "part"
        with connect(site, "GET", url) as link, link.makefile("rb") as answer:
            head = answer.readline()
            while answer.readline().strip():
                pass
            part.write_bytes(answer.read(1000))
            time.sleep(1.5)
            try:
                more = len(answer.read())
            except ConnectionResetError:
                more = 0
        assert b" 200 " in head
        assert more < len(larger) - 1000
        assert end(HttpDownload(HttpAccess(), url, part, digest, len(larger))).complete
    assert part.read_bytes() == larger


def test_no_more_bytes_than_the_expected_ones_are_taken(site: Site) -> None:
    url = site.urls.name_update(PLACE, 1000)
    assert site.ask("PUT", url, bytes(1001))[0] == 413
    assert site.ask("PUT", url, bytes(9), Content_Range="bytes 0-8/5000")[0] == 413
    assert site.ask("PUT", url, bytes(9), Content_Range="bytes 995-1003/1000")[0] == 413
    assert (site.spool / PLACE).stat().st_size <= 1000


def test_bytes_that_do_not_follow_are_refused_with_the_offset(site: Site) -> None:
    url, offset = site.urls.name_update(PLACE, 1000), OFFSET.lower()
    assert site.ask("PUT", url, bytes(400), Content_Range="bytes 0-399/1000")[0] == 204
    status, headers, _ = site.ask("PUT", url, bytes(400), Content_Range="bytes 0-399/1000")
    assert (status, headers[offset]) == (409, "400")
    assert site.ask("PUT", url, bytes(600), Content_Range="bytes 400-999/1000")[0] == 204
    assert site.ask("HEAD", url)[1][offset] == "1000"


def test_over_https_a_device_trusts_the_authority_of_its_fleet_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Authority(tmp_path / "pki")) as authority:
        tls = load_certificate(authority.server, authority.server, ("", ""))
        (spool := tmp_path / "spool").mkdir()
        with closing(TransferServer(spool, SECRET, ("127.0.0.1", 0), tls)) as server:
            site = Site(spool, server, "https")
            url = site.urls.name_update(PLACE, len(DATA))
            ours = HttpAccess(str(authority.ca), tls_only=True)
            assert end(HttpUpload(ours, url, memoryview(DATA), "w1")).complete
            stranger = HttpUpload(HttpAccess(), url, memoryview(DATA), "w1")
            stranger.start()
            eventually(lambda: caplog.text)
            stranger.stop()
    assert (spool / PLACE).read_bytes() == DATA
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    assert "name an authority that this device trusts" in caplog.text
