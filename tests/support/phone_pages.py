"""Run a coordinator that serves the phones' page, and open the page in a real browser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.web_page.browser import find_chromium, open_chromium
from coordinator.broker.local_addresses import find_free_port
from coordinator.built_page import PACKAGE
from tests.support.processes import COORDINATOR, ROOT, Running, Start, wait_for_words

__all__ = [
    "AXE",
    "PATIENCE",
    "RUN",
    "SIZE",
    "browser",
    "join",
    "needs_page",
    "open_page",
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
RUN = "phones"
SIZE = {"width": 390, "height": 844}
# keeps the loss of each step, which the worker reports to the page
RECORD = """
window.losses = [];
const Plain = Worker;
window.Worker = class extends Plain {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({data}) => "step" in data && window.losses.push(data.loss));
  }
};
"""


@pytest.fixture
def browser() -> Iterator[Any]:
    with open_chromium() as started:
        yield started


def start_run(tmp_path: Path, start: Start, *settings: str) -> tuple[Running, str]:
    """Start a coordinator that serves phones. Return it and the address of its broker."""
    port, phones = (find_free_port("127.0.0.1", 0) for _ in range(2))
    given = ["--port", str(port), "--phones", f"127.0.0.1:{phones}", "--name", RUN]
    settings = *settings, "broker.pki=pki"
    flags = [part for one in settings for part in ("--set", one)]
    process = start(*COORDINATOR, "start", "--format", "json", *given, *flags)
    assert wait_for_words(process, tmp_path / "0.err", "phones join at")
    return process, f"127.0.0.1:{port}"


def open_page(browser: Any, folder: Path, name: str, shard: str, **context: Any) -> Any:
    """Open the page that a phone opens when it scans its code."""
    asked = ["enroll", name, "--phone", "--host", "127.0.0.1", "--pki", "pki", "--format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*COORDINATOR, *asked], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    url, _, token = json.loads(done.stdout)["url"].partition("#")
    page = browser.new_context(viewport=SIZE, **context).new_page()
    page.add_init_script(RECORD)
    page.goto(f"{url}?shard={shard}#{token}")
    return page


def join(browser: Any, folder: Path, name: str, shard: str, **context: Any) -> Any:
    page = open_page(browser, folder, name, shard, **context)
    page.get_by_role("button", name="Train on digits").click(timeout=60_000)
    return page


def read_state(page: Any) -> str:
    """Return what the page says that the phone does."""
    return str(page.get_by_role("heading", level=2).first.inner_text())
