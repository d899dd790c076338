"""Phones download weights and upload updates over HTTP, from the coordinator or through a store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.faults.parts.object_store import BUCKET, CREDENTIALS, StoreServer, run_store
from benchmarks.phones import phone_pages
from coordinator.store.run_store import Store
from tests.support.object_stores import needs_store
from tests.support.phone_pages import ONE_SIZE, PAGE_TEST, PATIENCE, RUN, open_page, start_run
from tests.support.processes import Start

pytestmark = [pytest.mark.slow, *PAGE_TEST]

SETTINGS = (
    *ONE_SIZE,
    *("rounds=2", "broker.kind=embedded", "fleet.min_agents=1", "fleet.wait=600"),
)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", ["server", pytest.param("store", marks=needs_store)])
def test_a_phone_transfers_over_http(
    kind: str, credentials: None, tmp_path: Path, start: Start, browser: Any
) -> None:
    """Each kind of request first meets a server that is away, and is repeated."""
    with ExitStack() as stack:
        server: StoreServer | None = None
        settings = ["http.listen=127.0.0.1:0"]
        if kind == "store":
            server = stack.enter_context(run_store(tmp_path / "store"))
            settings = [f"http.store=s3://{BUCKET}", f"http.endpoint={server.endpoint}"]
        process, _ = start_run(tmp_path, start, *SETTINGS, *settings)
        page, failed, asked = open_page(browser, tmp_path, "ann", "0/2"), set[str](), set[str]()

        def fail_once(route: Any) -> None:
            method = route.request.method
            if urlsplit(route.request.url).netloc == urlsplit(page.url).netloc:
                route.fallback()
            elif method in failed:
                asked.add(method)
                route.fallback()
            else:
                failed.add(method)
                route.fulfill(status=503)

        page.route("**/*", fail_once)
        phone_pages.join(page)
        page.get_by_text("Finished").wait_for(timeout=PATIENCE * 1000)
        assert process.wait(PATIENCE) == 0
        assert {"GET", "PUT"} <= asked
        sent = page.locator("summary").all_inner_texts()
        assert [text for text in sent if text.startswith("upload: ")]
        assert not [text for text in sent if text.startswith("chunk")]
        if server is not None:
            assert server.list_objects() == []
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    assert store.rounds_done == 2
    store.close()
