"""Agents download a release from a web server, and get only its manifests over the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coordinator.release.archive import Archive
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import Rollout, release_run
from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_follower import fetch
from export import release_reader
from federated.errors import ExportError, UsageError
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.handmade_releases import toy


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Web:
    """A web server with a folder, and a broker."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.broker, self.lines = folder, MemoryBroker(), list[str]()
        self.bundle = toy(folder / "www" / "made", b"x" * 50_000)
        handler = partial(Quiet, directory=str(folder / "www"))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/made"
        (folder / "runs" / "spring").mkdir(parents=True)

    def release(self, files_at: str | None) -> None:
        link = MemoryLink(self.broker, "coordinator")
        archive = Archive(self.folder / "runs", "spring")
        rollout = Rollout(link, archive, {}, 7, self.lines.append)
        rollout.follow(ReleaseRequest("spring", "h", bundle=self.bundle, files_at=files_at))
        link.close()

    @property
    def chunks(self) -> list[str]:
        """The topics of the chunks that the broker retains."""
        return [topic for topic in self.broker.retained if "/c/" in topic]


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr("export.broker_publishing.SETTLE", 0.1)
    web = Web(tmp_path)
    yield web
    web.server.shutdown()
    web.server.server_close()


def test_a_release_is_downloaded_from_a_web_server(web: Web, tmp_path: Path) -> None:
    web.release(web.url)
    assert not web.chunks
    link = MemoryLink(web.broker, "pi")
    folder, submodel = fetch(link, Subscription("spring", "w1-d1", None, tmp_path / "pi"), 30)
    link.close()
    release_reader.read(folder, submodel)
    for path in folder.iterdir():
        assert path.read_bytes() == (web.bundle / path.name).read_bytes()


def test_chunks_are_withdrawn_once_a_web_server_has_the_files(web: Web) -> None:
    web.release(None)
    assert web.chunks
    web.release(web.url)
    assert not web.chunks


def test_files_that_are_missing_or_different_there_are_reported_before_anything_is_released(
    web: Web,
) -> None:
    with pytest.raises(ExportError, match=r"answers 404 .*upload the bundle's files there first"):
        web.release(f"{web.url}/wrong")
    (other := web.bundle.with_name("other")).mkdir()
    for path in web.bundle.iterdir():
        (other / path.name).write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ExportError, match=r"does not serve the file of this release: .*sha256"):
        web.release(f"{web.url.removesuffix('made')}other")
    assert not web.broker.retained


def test_only_a_bundle_can_be_on_a_web_server(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--files-at needs --bundle"):
        release_run(ReleaseRequest("spring", "h", files_at="https://h"), tmp_path, print)
