"""A phone whose browser lacks something, or whose broker is gone, in a real browser: the page says
it in words, and the round goes on. axe finds no violation in any of these states.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.phones.phone_pages import find_code, join, make_page, scan_code
from benchmarks.web_page.browser import open_chromium
from coordinator.broker import local_broker
from coordinator.broker.mosquitto_config import MAX_PACKET
from tests.support.brokers import needs_mosquitto
from tests.support.phone_pages import (
    PAGE_TEST,
    PATIENCE,
    SETTINGS,
    find_violations,
    list_stored,
    open_page,
    read_state,
    start_run,
)
from tests.support.processes import Start
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *PAGE_TEST]
ACCEPTED = re.compile(r"^Trainings accepted([1-9]\d*)$")
# V8 implements SIMD with instructions that old processors lack
WITHOUT_SIMD = "--js-flags=--no-enable-ssse3 --no-enable-sse4-1"


def count_trainings(page: Any) -> int:
    """Return how many trainings the coordinator accepted, once it has accepted one."""
    found = page.get_by_text(ACCEPTED)
    found.wait_for(timeout=PATIENCE * 1000)
    match = ACCEPTED.match(found.inner_text().replace("\n", ""))
    assert match is not None
    return int(match[1])


def wait_for_training(page: Any, before: int) -> None:
    """Wait until the coordinator has accepted more trainings than before."""
    eventually(lambda: page.wait_for_timeout(100) or count_trainings(page) > before, PATIENCE)


def test_a_browser_without_simd_is_told_which_ones_have_it(tmp_path: Path, start: Start) -> None:
    """Its code is not used up."""
    start_run(tmp_path, start, *SETTINGS)
    code = find_code(tmp_path, "p0")
    with open_chromium(WITHOUT_SIMD) as old:
        page = scan_code(make_page(old), code, "0/1")
        page.get_by_role("alert").get_by_text("no WebAssembly SIMD").wait_for()
        assert "Chrome 91" in page.inner_text("main")
        assert page.get_by_role("button").count() == 0
        assert find_violations(page) == []
    with open_chromium() as browser:
        page = scan_code(make_page(browser), code, "0/1")
        page.get_by_role("button", name="Train on digits").wait_for()


def test_a_phone_whose_storage_is_full_trains_on(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    start_run(tmp_path, start, *SETTINGS)
    page, code = make_page(browser), find_code(tmp_path, "p0")
    full = {"origin": code.partition("phone/")[0], "quotaSize": 1}  # bytes
    page.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", full)
    join(scan_code(page, code, "0/1"))
    page.get_by_text("After a reload you need a new code").wait_for()
    page.get_by_role("alert").get_by_text("storage is full").wait_for()
    page.get_by_role("log").get_by_text("The browser cannot store more").wait_for()
    before = count_trainings(page)
    wait_for_training(page, before)
    assert find_violations(page) == []


@pytest.mark.parametrize(
    ("kind", "limit"),
    [pytest.param("mosquitto", 200_000, marks=needs_mosquitto), ("embedded", MAX_PACKET)],
)
def test_a_phone_trains_on_when_its_broker_returns(
    kind: str, limit: int, tmp_path: Path, start: Start, browser: Any
) -> None:
    """Twice, each time after it tried in vain. One of the brokers also closes its first connection,
    because the first message of its measurement is too large.
    """
    with local_broker.start("127.0.0.1", 0, kind, tmp_path / "broker", max_packet=limit) as broker:
        given = [one for one in SETTINGS if not one.startswith("broker.")]
        start_run(tmp_path, start, *given, broker=broker.url)
        page = join(open_page(browser, tmp_path, "p0", "0/1"))
        count_trainings(page)
        for _ in range(2):
            broker.stop()
            page.get_by_text("Server unavailable").wait_for()
            assert read_state(page) == "No connection"
            before = count_trainings(page)  # the second time, more than a lost receipt is missing
            broker.restart()
            wait_for_training(page, before)


def test_a_phone_without_its_broker_says_so_and_leaves_the_run(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    with local_broker.start("127.0.0.1", 0, "auto", tmp_path / "broker") as broker:
        given = [one for one in SETTINGS if not one.startswith("broker.")]
        start_run(tmp_path, start, *given, broker=broker.url)
        page = join(open_page(browser, tmp_path, "p0", "0/1"))
        count_trainings(page)
        assert find_violations(page) == []
        os.killpg(broker.pid, signal.SIGSTOP)  # it answers no more, but keeps its connections
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Paused: someone pressed Pause").wait_for()
        assert list_stored(page)
        page.get_by_role("button", name="Leave the run").click()
        page.get_by_text("You left the run").wait_for()
        eventually(lambda: page.wait_for_timeout(100) or list_stored(page) == [])
        assert find_violations(page) == []
        os.killpg(broker.pid, signal.SIGCONT)

        other = join(open_page(browser, tmp_path, "p1", "0/1"))
        other.get_by_text("profile: 1 message").wait_for()
        broker.stop()
        other.get_by_text("The connection is lost").wait_for()
        assert read_state(other) == "No connection"
        assert find_violations(other) == []
