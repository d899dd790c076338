"""What goes wrong around a phone, in a real browser: the page says it in words, or refuses."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from benchmarks.phones import phone_pages
from benchmarks.phones.phone_pages import find_code, make_page, scan_code
from benchmarks.web_page.browser import open_chromium
from coordinator.access.configured_authority import open_authority
from coordinator.settings.service_tables import Broker
from federated.data import loading
from tests.support.phone_pages import (
    PAGE_TEST,
    PATIENCE,
    SETTINGS,
    find_violations,
    join,
    read_state,
    start_run,
)
from tests.support.phone_pictures import name_class, write_video
from tests.support.processes import Start
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *PAGE_TEST]
# hides the page at the next step of a training, as the chooser of a file does on phones
HIDE_IN_TRAINING = """
const Known = Worker;
window.Worker = class extends Known {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({data}) => {
      if (!window.hideNow || !("step" in data)) return;
      Object.defineProperty(document, "hidden", {get: () => true, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    });
  }
};
"""


@contextmanager
def serve_site(folder: Path, **pages: str) -> Iterator[str]:
    """Serve another site with pages by name; yield its address."""
    site = folder / "site"
    site.mkdir()
    for name, text in pages.items():
        (site / name).write_text(text)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *given: Any) -> None:
            pass

    handler = partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_codes_that_do_not_work_and_other_sites_are_refused(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    start_run(tmp_path, start, *SETTINGS)
    code = find_code(tmp_path, "p0")
    url, _, token = code.partition("#")
    origin = url.removesuffix("/phone/")

    lost = make_page(browser)
    answers = list[int]()

    def lose(route: Any) -> None:
        """Let the server answer, but not the first time the page."""
        answers.append(route.fetch().status)
        if len(answers) > 1:
            route.continue_()
        else:
            route.abort()

    lost.route("**/phone/join", lose)
    scan_code(lost, code, "0/4")
    lost.get_by_role("button", name="Train on digits").wait_for()
    assert answers == [200, 200]
    assert lost.url.partition("?")[0] == url, "no token stays in the address"

    stranger = make_page(browser)
    stranger.goto(f"{url}#{token}")
    stranger.get_by_role("alert").get_by_text("already used").wait_for()
    with closing(open_authority(Broker(pki=str(tmp_path / "pki")))) as authority:
        expired = authority.invite("p1", "127.0.0.1", 1, -1)
    late = make_page(browser)
    late.goto(f"{url}#{expired}")
    late.get_by_role("alert").get_by_text("expired").wait_for()
    assert find_violations(late) == []

    frame = f'<iframe src="{url}"></iframe>'
    with serve_site(tmp_path, **{"frame.html": frame, "empty.html": ""}) as site:
        framing = make_page(browser)
        framing.goto(f"{site}/frame.html")
        framing.wait_for_load_state("networkidle")
        inner = framing.frames[1]
        assert inner.url != url
        assert inner.locator("h1", has_text="Espalier").count() == 0
        foreign = make_page(browser)
        foreign.goto(f"{site}/empty.html")
        ask = "url => fetch(url, {method: 'POST', body: '{}'}).then(() => 'sent', () => 'refused')"
        assert foreign.evaluate(ask, f"{url}join") == "refused"
        connect = """url => new Promise(resolve => {
          const socket = new WebSocket(url, "mqtt");
          socket.onopen = () => resolve("open");
          socket.onerror = () => resolve("refused");
        })"""
        pipe = f"{origin.replace('http', 'ws')}/mqtt"
        assert foreign.evaluate(connect, pipe) == "refused"
        assert lost.evaluate(connect, pipe) == "open", "the page itself may"
    secret = token.split("/1-")[1].split("-")[0]
    assert secret not in (tmp_path / "0.err").read_text() + (tmp_path / "0.out").read_text()


def test_the_token_is_in_no_address_and_the_page_in_no_referrer(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    start_run(tmp_path, start, *SETTINGS)
    page, requests = make_page(browser), list[Any]()

    def note(request: Any) -> None:
        requests.append(request)

    page.on("request", note)
    code = find_code(tmp_path, "p0")
    phone_pages.join(scan_code(page, code, "0/1"))
    page.get_by_text("profile: 1 message").wait_for()
    assert {"join", "digits"} <= {urlsplit(one.url).path.rpartition("/")[2] for one in requests}
    secret = code.partition("#")[2].split("/1-")[1].split("-")[0]
    for one in requests:
        assert secret not in one.url.partition("#")[0]
        assert "referer" not in one.all_headers(), one.url
    with serve_site(tmp_path, **{"empty.html": ""}) as site:
        page.evaluate("url => { location.href = url }", f"{site}/empty.html")
        page.wait_for_url(f"{site}/empty.html")
        assert page.evaluate("document.referrer") == ""


def test_the_network_is_tried_while_the_page_is_hidden(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    """Choosing a file hides the page on phones, which ends its worker in a training."""
    start_run(tmp_path, start, *SETTINGS)
    page = join(browser, tmp_path, "p0", "0/1", init=HIDE_IN_TRAINING)
    held = loading.load_central("digits")
    eventually(lambda: name_class(page, held.x_held[0], "first.png") is not None, PATIENCE)
    page.wait_for_timeout(5000)  # some rounds of training
    page.evaluate("window.hideNow = true")
    page.get_by_text("Paused: the page is in the background").wait_for()
    assert find_violations(page) == []
    found = [name_class(page, x, f"{at}.png") for at, x in enumerate(held.x_held[:8])]
    right = [a == b for a, b in zip(found, held.y_held[:8], strict=True)]
    assert sum(right) >= 6, found
    page.evaluate("""() => {
      window.hideNow = false;
      Object.defineProperty(document, "hidden", {get: () => false, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    before = page.evaluate("window.trainings.length")
    eventually(
        lambda: page.wait_for_timeout(100) or page.evaluate("window.trainings.length") > before
    )


def test_the_network_names_what_the_camera_sees(tmp_path: Path, start: Start) -> None:
    held = loading.load_central("digits")
    x, label = held.x_held[0], int(held.y_held[0])
    flags = (
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={write_video(tmp_path / 'digit.y4m', np.asarray(x))}",
    )
    start_run(tmp_path, start, *SETTINGS)
    with open_chromium(*flags) as browser:
        page = join(browser, tmp_path, "p0", "0/1", permissions=["camera"])
        page.get_by_role("button", name="Use the camera").click()
        answer = page.get_by_text(re.compile(r"^class \d+ \("))
        eventually(
            lambda: (
                page.wait_for_timeout(200)
                or any(text.startswith(f"class {label} (") for text in answer.all_inner_texts())
            ),
            PATIENCE,
        )
        assert read_state(page) not in {"Finished", "No connection"}
        heard = page.get_by_role("status").get_by_text(f"class {label}", exact=True)
        heard.wait_for(state="attached")
        assert find_violations(page) == []
        page.get_by_role("button", name="Stop the camera").click()
        page.get_by_role("button", name="Use the camera").wait_for()
        assert page.evaluate("document.querySelector('video').srcObject") is None
        page.get_by_role("button", name="Use the camera").click()
        # not wait_for_function, which the content security policy refuses once it has to wait
        eventually(
            lambda: page.evaluate("document.querySelector('video').srcObject !== null"), PATIENCE
        )
        page.get_by_role("button", name="Leave the run").click()
        page.get_by_text("You left the run").wait_for()
        page.wait_for_timeout(500)
        assert page.locator("video").count() == 0
        assert page.workers == [], "nothing is computed after the end"

    with open_chromium() as browser:  # without any camera
        page = join(browser, tmp_path, "p1", "0/1", permissions=["camera"])
        page.get_by_role("button", name="Use the camera").click()
        page.get_by_role("alert").get_by_text("no camera").wait_for()
        denied = join(browser, tmp_path, "p2", "0/1")
        denied.get_by_role("button", name="Use the camera").click()
        denied.get_by_role("alert").wait_for()
