"""What goes wrong is said on the page, in a real browser, in words that a person understands."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.web_page.browser import open_chromium, sign_in
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from coordinator.store.control_requests import read_requests
from coordinator.store.run_folders import DATABASE
from federated.runtime.logs import EVENTS
from tests.support.memory_federation import RUN as MEMORY_RUN
from tests.support.processes import AGENT, Start, wait_for_words
from tests.support.run_pages import (
    RUN,
    TOKEN,
    hold_run,
    needs_page,
    open_page,
    read_table,
    serve,
    start_run,
)

pytestmark = [pytest.mark.slow, needs_page]
PATIENCE = 90_000  # milliseconds


@pytest.mark.processes
@pytest.mark.broker
def test_a_broker_that_is_gone_and_returns(tmp_path: Path, start: Start, browser: Any) -> None:
    port, errors = find_free_port("127.0.0.1", 0), list[str]()
    with serve(tmp_path) as server:
        with brokers.start("127.0.0.1", port, "auto", tmp_path / "broker") as broker:
            coordinator = start_run(start, "--broker", broker.address, "--rounds", "500")
            for index in range(2):
                start(*AGENT, "join", "--broker", broker.address, "--name", f"a{index}")
            assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of 500")
            page = open_page(browser, server, errors)
            page.get_by_text(re.compile(r"^In round \d")).wait_for(timeout=PATIENCE)
        page.get_by_text("Waiting for the broker.").wait_for(timeout=PATIENCE)
        page.get_by_text("The run continues when the broker is back.").wait_for()
        with brokers.start("127.0.0.1", port, "auto", tmp_path / "again"):
            page.get_by_text(re.compile(r"^In round \d")).wait_for(timeout=2 * PATIENCE)
            page.goto(f"{server.url}/#/{RUN}/log")
            faults = {row["fault"]: row for row in read_table(page, "Faults survived")}
            assert faults["the broker was lost"]["times"] == "1"
    assert errors == []


def test_a_run_that_ended_meanwhile(browser: Any, tmp_path: Path) -> None:
    errors = list[str]()
    with serve(tmp_path) as server:
        with hold_run(tmp_path) as folder:
            page = open_page(browser, server, errors, "overview", folder.name)
            page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
        page.get_by_text("is not running").wait_for(timeout=PATIENCE)
        page.keyboard.press("Escape")
        page.get_by_text("Finished.").wait_for(timeout=PATIENCE)
        assert not page.get_by_role("button", name="Pause").is_visible()
        page.goto(f"{server.url}/#/no-such-run/overview")
        page.get_by_text("There is no run 'no-such-run' in this folder.").wait_for()
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("link", name=folder.name).wait_for()
    assert errors == []


def test_a_page_that_is_left_open_over_night(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign-in ends, here after seconds; a new one returns to the same view."""
    from coordinator.web import page_server
    from coordinator.web import sign_in as sessions

    for module in (sessions, page_server):
        monkeypatch.setattr(module, "LIFETIME", 5)
    errors = list[str]()
    with hold_run(tmp_path) as folder, serve(tmp_path) as server:
        page = open_page(browser, server, errors, "devices", folder.name)
        page.get_by_text("Your sign-in has ended").wait_for(timeout=PATIENCE)
        assert "a0" not in page.locator("main").inner_text()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Why each device has its submodel").wait_for()
    assert errors == []


def test_a_server_that_restarts_with_another_token(browser: Any, tmp_path: Path) -> None:
    port, errors, renewed = find_free_port("127.0.0.1", 0), list[str](), f"{TOKEN}-renewed"
    with hold_run(tmp_path) as folder:
        with serve(tmp_path, port) as server:
            page = open_page(browser, server, errors, "round", folder.name)
            page.get_by_role("heading", name="Tasks of round 2").wait_for(timeout=PATIENCE)
        page.get_by_text("The connection to the server is lost").wait_for(timeout=PATIENCE)
        with serve(tmp_path, port, renewed):
            page.get_by_text("Your sign-in has ended").wait_for(timeout=PATIENCE)
            for token, answer in ((TOKEN, "wrong token"), (renewed, "Tasks of round 2")):
                page.get_by_label("Token").fill(token)
                page.get_by_role("button", name="Sign in").click()
                page.get_by_text(answer).wait_for(timeout=PATIENCE)
    assert errors == []


PASSED_ON = ("Content-Type", "Origin", "Sec-Fetch-Site")  # by a proxy
FOREIGN = """<!doctype html><title>foreign</title><iframe src="%(url)s/"></iframe>
<script>
  const body = JSON.stringify({ command: "pause", token: "%(token)s" });
  const post = { method: "POST", mode: "no-cors", credentials: "include", body };
  const read = { credentials: "include" };
  const asked = fetch("%(url)s/api/runs/%(run)s/request", post);
  Promise.allSettled([asked, fetch("%(url)s/api/runs", read)])
    .then((all) => (document.title = all.map((one) => one.status).join()));
</script>"""


def test_pages_of_another_origin_neither_read_nor_frame_nor_command(
    browser: Any, tmp_path: Path
) -> None:
    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((FOREIGN % {"url": url, "token": TOKEN, "run": MEMORY_RUN}).encode())

        def log_message(self, *given: object) -> None:
            pass

    with (
        hold_run(tmp_path) as folder,
        serve(tmp_path) as server,
        ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as other,
    ):
        url = server.url
        threading.Thread(target=other.serve_forever, daemon=True).start()
        context = browser.new_context()
        sign_in(context.new_page(), f"{url}/#/{MEMORY_RUN}/overview", TOKEN)
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        page.wait_for_function("document.title !== 'foreign'", timeout=PATIENCE)
        assert page.title() == "rejected,rejected"
        assert not read_requests(folder).paused
        assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]
        other.shutdown()


def test_a_proxy_that_hides_the_origin_of_the_page(browser: Any, tmp_path: Path) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            size = int(self.headers.get("Content-Length", 0))
            headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
            with closing(http.client.HTTPConnection(server.url.partition("://")[2])) as link:
                link.request(self.command, self.path, self.rfile.read(size) or None, headers)
                answer = link.getresponse()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["content-type"])
                self.end_headers()
                self.wfile.write(answer.read())

        do_POST = do_GET  # noqa: N815  # the library's name

        def log_message(self, *given: object) -> None:
            pass

    with serve(tmp_path) as server, ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        page, address = browser.new_page(), f"127.0.0.1:{proxy.server_port}"
        page.goto(f"http://{address}/")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        told = page.get_by_role("alert")
        told.wait_for(timeout=PATIENCE)
        assert f"comes from a page of http://{address}, but this server is" in told.inner_text()
        assert "must keep the header Host" in told.inner_text()
        proxy.shutdown()


def test_another_name_of_the_server(tmp_path: Path) -> None:
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with serve(tmp_path) as server, open_chromium(rules) as browser:
        page = browser.new_page()
        page.goto(server.url.replace("127.0.0.1", "evil.example"))
        shown = page.locator("body").inner_text()
    assert "does not answer to the name 'evil.example'" in shown


def change_store(runs: Path, statement: str) -> None:
    with closing(sqlite3.connect(runs / MEMORY_RUN / DATABASE)) as database, database:
        database.execute(statement)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version=99", "was written by a later version of espalier"),
        ("ALTER TABLE rounds RENAME TO turns", "is not a run's database"),
        ("UPDATE facts SET value='{}' WHERE key='network'", "is damaged"),
    ],
)
def test_a_store_that_another_version_wrote(
    browser: Any, tmp_path: Path, statement: str, words: str
) -> None:
    errors = list[str]()
    with hold_run(tmp_path) as folder, serve(tmp_path) as server:
        page = open_page(browser, server, errors, "devices", folder.name)
        page.get_by_role("heading", name="Why each device has its submodel").wait_for()
        change_store(folder.parent, statement)
        page.get_by_text(words).first.wait_for(timeout=PATIENCE)
        page.goto(f"{server.url}/")
        page.get_by_role("cell").filter(has_text=words).wait_for(timeout=PATIENCE)
    assert errors == []


def test_texts_of_strangers_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    errors, text = list[str](), "<img src=x onerror=\"document.title='run'\"><b>bold</b> =1+1"
    with hold_run(tmp_path) as folder, serve(tmp_path) as server:
        line = {"time": "2026-01-01T00:00:00", "level": "WARNING", "event": "refused"}
        with (folder / EVENTS).open("a") as log:
            log.write(json.dumps({**line, "message": text, "agent": "<i>a9</i>"}) + "\n")
        page = open_page(browser, server, errors, "log", folder.name)
        (row,) = read_table(page, "Faults survived")
        assert row["reason"] == text
        assert page.locator("main img, main b, main i").count() == 0
        page.get_by_label("Filter").fill("bold")
        page.wait_for_function("location.hash.includes('word=bold')")  # a permanent link
        page.goto(f"{server.url}/#/{folder.name}/overview")
        page.get_by_text(text).wait_for(timeout=PATIENCE)
        assert page.title() == f"{folder.name}: Overview - Espalier"
    assert errors == []
