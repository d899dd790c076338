"""The page in a real browser, beside a real run: its numbers, its buttons, and a coordinator that
dies while the page is open.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coordinator.store.control_requests import read_requests
from coordinator.views.run_status import describe_status
from coordinator.web.serve import PACKAGE, find_page
from federated.runtime.connection_limits import listen
from tests.support.processes import AGENT, COORDINATOR, Running, Start, wait_for_words
from tests.support.waiting import eventually

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parents[3] / "coordinator/web/page/node_modules/axe-core/axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timed,
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason="the page is not built: run `make web`"),
]
TOKEN = "a-token-for-the-browser"
RUN = "seen"
# the first line of the overview; devices are "asked in round 3" even after the coordinator crashed
IN_ROUND = re.compile(r"^In round \d")


@pytest.fixture
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        with closing(playwright.chromium.launch(executable_path=CHROMIUM, args=options)) as started:
            yield started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    from coordinator.web.page_server import PageServer, Site

    (tmp_path / "runs").mkdir(exist_ok=True)
    site = Site(tmp_path / "runs", find_page(), TOKEN)
    with closing(PageServer(site, listen("127.0.0.1", 0))) as made:
        yield made


def start_run(start: Start, *more: str) -> Running:
    settings = ("method.widths=[0.25]", "train.epochs=1", "evaluate.every=1")
    flags = [part for one in settings for part in ("--set", one)]
    return start(
        *COORDINATOR,
        "start",
        "--method",
        "fedavg",
        "--name",
        RUN,
        "--min-agents",
        "2",
        "--format",
        "json",
        *flags,
        *more,
    )


def open_page(browser: Any, server: Any, errors: list[str], view: str = "overview") -> Any:
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{server.url}/#/{RUN}/{view}")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation", name="Views").wait_for(timeout=60_000)
    return page


def ask(page: Any, command: str) -> None:
    page.get_by_role("button", name=command, exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill(TOKEN)
    dialog.get_by_role("button", name=command, exact=True).click()
    page.get_by_text(f"{command}: requested.").wait_for(timeout=30_000)


def test_a_run_is_shown_paused_killed_and_resumed(
    tmp_path: Path, start: Start, browser: Any, server: Any, broker: str
) -> None:
    errors = list[str]()
    coordinator = start_run(start, "--broker", broker, "--rounds", "500")
    for index in range(2):
        start(*AGENT, "join", "--broker", broker, "--name", f"a{index}", "--wait", "120")
    assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of 500")
    page = open_page(browser, server, errors)

    ask(page, "Pause")
    assert read_requests(tmp_path / "runs" / RUN).paused
    page.get_by_text("Paused after round").wait_for(timeout=60_000)
    shown = json.loads(page.evaluate("fetch('/api/runs/seen/status').then(r => r.text())"))
    told = describe_status(RUN, tmp_path / "runs")
    for key in ("rounds_done", "state", "bytes_up", "bytes_down", "scores"):
        assert shown[key] == json.loads(json.dumps(told[key])), key
    facts = page.locator(".facts").inner_text()
    assert f"{told['rounds_done']} of 500" in facts
    (score,) = told["scores"]["values"]
    page.get_by_role("button", name="Table").first.click()
    assert f"{score['accuracy']:.3f}".rstrip("0") in page.locator("main").inner_text()

    ask(page, "Resume")
    page.get_by_text(IN_ROUND).wait_for(timeout=60_000)
    coordinator.send_signal(signal.SIGKILL)
    page.get_by_text("crashed or was killed").wait_for(timeout=60_000)
    start_run(start, "--broker", broker, "--resume")
    page.get_by_text(IN_ROUND).wait_for(timeout=90_000)
    ask(page, "Stop")
    page.get_by_text("Stopped.").wait_for(timeout=90_000)
    assert errors == []


def test_every_view_is_accessible_and_loads_nothing_from_elsewhere(
    tmp_path: Path, start: Start, browser: Any, server: Any, broker: str
) -> None:
    """axe finds no violation, on a desk and on a phone, in both colour schemes."""
    coordinator = start_run(start, "--broker", broker, "--rounds", "2")
    for index in range(2):
        start(*AGENT, "join", "--broker", broker, "--name", f"a{index}", "--wait", "120")
    assert coordinator.wait(120) == 0
    asked, violations = set[str](), list[str]()
    for size, scheme in (((1200, 900), "light"), ((390, 800), "dark")):
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=True)
        page = open_page(context, server, [])
        page.on("request", lambda request: asked.add(request.url))
        for view in ("overview", "devices", "rounds", "network", "log", "settings"):
            page.goto(f"{server.url}/#/{RUN}/{view}")
            eventually(lambda page=page: "Loading" not in page.locator("main").inner_text())
            page.add_script_tag(content=AXE.read_text())
            found = page.evaluate("axe.run().then(found => found.violations)")
            violations += [f"{view} {scheme}: {one['id']}: {one['help']}" for one in found]
    assert violations == []
    assert {url for url in asked if not url.startswith(server.url)} == set()
