"""Run a coordinator that serves the phones' page, for tests that open the page in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.phones import phone_pages
from benchmarks.phones.phone_pages import HOST, find_code, list_start_arguments
from benchmarks.web_page.browser import find_chromium, open_chromium
from coordinator.broker.local_addresses import find_free_port
from coordinator.built_page import PACKAGE
from tests.support.processes import COORDINATOR, ROOT, Running, Start, wait_for_words

__all__ = [
    "ONE_SIZE",
    "PAGE_TEST",
    "PATIENCE",
    "RUN",
    "SETTINGS",
    "browser",
    "find_violations",
    "join",
    "list_stored",
    "needs_page",
    "open_page",
    "place_graphs",
    "read_state",
    "start_run",
]

AXE = ROOT / "coordinator/web/page/node_modules/axe-core/axe.min.js"
PATIENCE = 900.0  # seconds; a busy machine takes minutes to export the graphs
WANTED = ("playwright", "websockets", PACKAGE)  # the page is built by `make web`

needs_page = pytest.mark.skipif(
    find_chromium() is None or not all(map(find_spec, WANTED)),
    reason=f"Chromium or one of {', '.join(WANTED)} is not installed: run `make web`",
)
PAGE_TEST = [  # and slow, which each file marks itself: CI finds slow tests by it
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.timeout(2 * PATIENCE),
    needs_page,
]
# of a run with one submodel, whose training graphs all such runs share
ONE_SIZE = ("model.name=mlp", "data.name=digits", "method.name=fedavg", "method.widths=[1.0]")
# of a small run that goes on until the test ends
SETTINGS = (
    *ONE_SIZE,
    *("rounds=100000", "broker.kind=embedded", "fleet.min_agents=1"),
)
RUN = "phones"
# in IndexedDB, by the page
LIST_STORED = """() => new Promise(resolve => {
  const opened = indexedDB.open("espalier");
  opened.onsuccess = () => {
    const asked = opened.result.transaction("device").objectStore("device").getAllKeys();
    asked.onsuccess = () => { opened.result.close(); resolve(asked.result); };
  };
})"""


@pytest.fixture
def browser() -> Iterator[Any]:
    with open_chromium() as started:
        yield started


def start_run(
    tmp_path: Path, start: Start, *settings: str, broker: str | None = None, page: int = 0
) -> tuple[Running, str]:
    """Start a coordinator that serves phones. Return it and the address of its broker. broker: a
    running one. page: port of the page.
    """
    own = find_free_port(HOST, 0)
    ports = None if broker else own, find_free_port(HOST, page)
    given = *settings, *([f"broker.url={broker}"] if broker else [])
    process = start(*COORDINATOR, *list_start_arguments(tmp_path, RUN, ports, given))
    assert wait_for_words(process, tmp_path / "0.err", "phones join at")
    if {*ONE_SIZE} <= {*settings}:
        place_graphs(tmp_path, RUN)
    return process, broker or f"{HOST}:{own}"


def place_graphs(tmp_path: Path, run: str) -> None:
    """Give a run of ONE_SIZE its training graphs."""
    # imported here, since all tests import this module
    from coordinator.run.config_sources import ConfigSources
    from tests.support.exported_graphs import find_graphs, list_orders

    (order,) = list_orders(ConfigSources(settings=ONE_SIZE).load())
    graphs = tmp_path / "runs" / run / "graphs" / order.name
    shutil.copytree(find_graphs(order, tmp_path), graphs)


def open_page(browser: Any, folder: Path, name: str, shard: str, **context: Any) -> Any:
    """Open the page that a phone opens when it scans its code."""
    page = phone_pages.make_page(browser, **context)
    return phone_pages.scan_code(page, find_code(folder, name), shard)


def join(browser: Any, folder: Path, name: str, shard: str, **context: Any) -> Any:
    return phone_pages.join(open_page(browser, folder, name, shard, **context))


def find_violations(page: Any) -> list[str]:
    """Return what axe finds in the page as it is now, in both colour schemes."""
    page.evaluate(AXE.read_text())
    found = list[str]()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = page.evaluate("axe.run().then(found => found.violations)")
        found += [f"{scheme}: {one['id']}: {one['help']}" for one in violations]
    return found


def list_stored(page: Any) -> list[str]:
    """Return the names of what the page keeps in the browser."""
    found: list[str] = page.evaluate(LIST_STORED)
    return found


def read_state(page: Any) -> str:
    """Return what the page says that the phone does."""
    return str(page.get_by_role("heading", level=2).first.inner_text())
