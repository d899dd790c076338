"""The phones' page at a name in the network, in a real browser: over HTTPS it can do everything;
over plain HTTP it trains, and says what it lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.phones.phone_pages import HOST, find_code, join, make_page, scan_code
from benchmarks.web_page.browser import open_chromium
from coordinator.access.certificate_authority import Authority
from coordinator.broker.local_addresses import find_free_port
from federated.data import loading
from tests.support.phone_pages import (
    PAGE_TEST,
    PATIENCE,
    SETTINGS,
    find_violations,
    read_state,
    start_run,
)
from tests.support.phone_pictures import make_picture, name_class
from tests.support.processes import Start
from tests.support.reverse_proxy import PREFIX, needs_nginx, run_proxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *PAGE_TEST]
NAME = "phones.test"  # reserved for tests (RFC 6761); browsers take localhost alone as secure
RESOLVE = f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
# keeps the page's wake locks
RECORD_LOCKS = """
window.locks = [];
const plain = WakeLock.prototype.request;
WakeLock.prototype.request = async function (...given) {
  const lock = await plain.apply(this, given);
  window.locks.push(lock);
  return lock;
};
"""
COUNT_LOCKS = "window.locks.filter(lock => !lock.released).length"


def trust(home: Path, authority: Path) -> None:
    """Let a browser with this home trust an authority."""
    store = home / ".pki/nssdb"
    store.mkdir(parents=True)
    for task in (["-N", "--empty-password"], ["-A", "-n", "fleet", "-t", "C,,", "-i", authority]):
        subprocess.run(["certutil", "-d", f"sql:{store}", *task], check=True)


def list_encodings(page: Any) -> set[str]:
    """Return a set to which the encodings of the page's assets are added as they arrive."""
    found = set[str]()

    def note(response: Any) -> None:
        if "/assets/" in response.url:
            found.add(response.headers.get("content-encoding", ""))

    page.on("response", note)
    return found


@contextmanager
def serve_https(way: str, folder: Path, start: Start) -> Iterator[Path]:
    """Start a run that serves phones at NAME. Yield the authority that phones must trust."""
    if way == "authority":
        start_run(folder, start, *SETTINGS, "phones.tls=true", f'broker.hosts=["{NAME}"]')
        yield folder / "pki" / "ca.pem"
        return
    with closing(Authority(folder / "other", [NAME])) as other:
        pem = other.server  # certificate and key
    if way == "certificate":
        start_run(folder, start, *SETTINGS, f"phones.certificate={pem}", f"phones.key={pem}")
        yield other.ca
        return
    port, page = find_free_port(HOST, 0), find_free_port(HOST, 0)
    url = f"https://{NAME}:{port}{PREFIX}"
    start_run(folder, start, *SETTINGS, f"phones.url={url}", page=page)
    with run_proxy(folder / "proxy", f"{HOST}:{port}", f"{HOST}:{page}", pem):
        yield other.ca


@pytest.mark.skipif(shutil.which("certutil") is None, reason="certutil is not installed")
@pytest.mark.parametrize(
    "way", ["authority", "certificate", pytest.param("proxy", marks=needs_nginx)]
)
def test_over_https_a_phone_can_do_everything(way: str, tmp_path: Path, start: Start) -> None:
    """With a certificate of the fleet's authority, with a given one, or behind a reverse proxy that
    serves it below a path of its own.
    """
    with serve_https(way, tmp_path, start) as authority:
        for home in ("stranger", "friend"):
            (tmp_path / home).mkdir()
        code = find_code(tmp_path, "p0", NAME)
        assert code.startswith(f"https://{NAME}:")
        with (
            open_chromium(RESOLVE, home=tmp_path / "stranger") as browser,
            pytest.raises(Exception, match="ERR_CERT_AUTHORITY_INVALID"),
        ):
            scan_code(make_page(browser), code, "0/1")
        trust(tmp_path / "friend", authority)
        with open_chromium(RESOLVE, home=tmp_path / "friend") as browser:
            page = make_page(browser, RECORD_LOCKS)
            check_everything(page, code)
        if way == "proxy":
            requests = (tmp_path / "proxy" / "access.log").read_text()
            assert f"POST {PREFIX}/phone/join" in requests
            assert code.partition("/1-")[2].split("-")[0] not in requests, "the token is in no log"


def check_everything(page: Any, code: str) -> None:
    """Let a phone join and train, and check what browsers give a page only over HTTPS."""
    encodings, sockets = list_encodings(page), list[str]()
    page.on("websocket", lambda socket: sockets.append(socket.url))
    join(scan_code(page, code, "0/1"))
    assert page.evaluate("isSecureContext && crossOriginIsolated")
    eventually(lambda: page.wait_for_timeout(200) or read_state(page) == "Training", PATIENCE)
    assert encodings == {"br"}
    assert sockets
    place = code.partition("/phone/")[0].replace("https", "wss")
    assert {*sockets} == {f"{place}/mqtt"}
    assert page.get_by_text("What this page cannot do here").count() == 0
    page.get_by_text("Battery").wait_for()
    assert find_violations(page) == []
    assert page.evaluate(COUNT_LOCKS) == 1
    page.get_by_role("button", name="Pause").click()
    eventually(lambda: page.evaluate(f"{COUNT_LOCKS} === 0"), PATIENCE)


def test_without_https_a_phone_trains_and_says_what_it_lacks(tmp_path: Path, start: Start) -> None:
    start_run(tmp_path, start, *SETTINGS)
    code = find_code(tmp_path, "p0", NAME)
    assert code.startswith(f"http://{NAME}:")
    held = loading.load_central("digits")
    with open_chromium(RESOLVE) as browser:
        page = make_page(browser)
        encodings = list_encodings(page)
        scan_code(page, code, "0/1")
        page.get_by_role("button", name="Train on these pictures").wait_for()
        for lacking in ("crypto.subtle", "navigator.mediaDevices", "window.DeviceMotionEvent"):
            assert page.evaluate(f"typeof {lacking}") == "undefined", lacking
        assert not page.evaluate("isSecureContext || crossOriginIsolated")
        lacks = page.get_by_text("What this page cannot do here").locator("..")
        for words in ("camera", "motion sensors", "keep the screen on", "--phones-tls"):
            assert words in lacks.inner_text()
        for label in (0, 1):
            page.get_by_role("spinbutton", name="Class").fill(str(label))
            chosen = [x for x, y in zip(held.x, held.y, strict=True) if y == label][:20]
            page.get_by_label("Pictures of this class").set_input_files(
                [make_picture(x, f"{label}-{at}.png") for at, x in enumerate(chosen)]
            )
        page.get_by_text("Class 0: 20 pictures. Class 1: 20 pictures.").wait_for()
        page.get_by_role("button", name="Train on these pictures").click()
        accepted = page.get_by_text(re.compile(r"^Trainings accepted[1-9]"))
        accepted.wait_for(timeout=PATIENCE * 1000)
        assert "32 to train, 8 to test (pictures)" in page.inner_text("main")
        x = next(x for x, y in zip(held.x_held, held.y_held, strict=True) if y == 1)
        names = iter(range(1000))
        eventually(lambda: name_class(page, x, f"try-{next(names)}.png") == 1, PATIENCE)
        assert page.get_by_role("button", name="Use the camera").count() == 0
        assert encodings == {"gzip"}
        assert "--phones-tls" in lacks.inner_text()
        assert find_violations(page) == []
