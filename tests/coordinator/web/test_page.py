"""The page in a real browser, beside a real run: its numbers, its buttons, and a coordinator that
dies while the page is open.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.web_page.browser import LONGEST_WAIT, sign_in
from coordinator.cli.main import main
from coordinator.observe.now_json import TaskCourse
from coordinator.store.control_requests import read_requests
from federated.runtime.unit_formatting import human_bytes
from tests.support.processes import AGENT, Start, wait_for_words
from tests.support.run_pages import (
    AXE,
    RUN,
    TOKEN,
    VIEWS,
    ask,
    change_now,
    needs_page,
    open_page,
    read_table,
    start_run,
)
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.broker, needs_page]
# the first line of the overview; devices are "asked in round 3" even after the coordinator crashed
IN_ROUND = re.compile(r"^In round \d")
SECONDS = {"\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


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
    page.get_by_text("Paused after round").wait_for()
    shown = json.loads(page.evaluate("fetch('/api/runs/seen/status').then(r => r.text())"))
    told = print_json(tmp_path / "runs", "status")
    for key in ("rounds_done", "state", "bytes_up", "bytes_down", "scores", "requests"):
        assert shown[key] == told[key], key
    facts = read_facts(page)
    assert facts["Rounds done"] == f"{told['rounds_done']} of 500"
    assert [facts[name] for name in ("Method", "Model", "Data")] == [
        told[key] for key in ("method", "model", "data")
    ]
    for name, key in (("From agents", "bytes_up"), ("To agents", "bytes_down")):
        assert facts[name] == human_bytes(told[key])
    rows = read_table(page, "Agents now")
    assert [(row["agent"], row["submodel"], row["state"]) for row in rows] == [
        (one["agent"], one["submodel"], one["state"]) for one in told["now"]["members"]
    ]
    (score,) = told["scores"]["values"]
    page.get_by_role("button", name="Table").first.click()
    assert f"{score['accuracy']:.3f}".rstrip("0") in page.locator("main").inner_text()

    check_costs(open_page(browser, server, errors, "devices"), tmp_path / "runs")

    ask(page, "Resume")
    page.get_by_text(IN_ROUND).wait_for()
    coordinator.send_signal(signal.SIGKILL)
    page.get_by_text("crashed or was killed").wait_for()
    resumed = start_run(start, "--broker", broker, "--resume")
    # until it reads requests, it deletes those to an earlier coordinator
    assert wait_for_words(resumed, tmp_path / "3.err", " of 500: ")
    page.get_by_text(IN_ROUND).wait_for()
    ask(page, "Stop")
    page.get_by_text("Stopped.").wait_for()
    assert errors == []


def print_json(runs: Path, command: str) -> dict[str, Any]:
    arguments = [command, RUN, "--runs", str(runs), "--format", "json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def read_facts(page: Any) -> dict[str, str]:
    texts = (page.locator(f".facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(*texts, strict=True))


def check_costs(page: Any, runs: Path) -> None:
    """Check what was predicted and measured of each device, against `coordinator devices`."""
    rows = read_table(page, "Why each device has its submodel")
    told = print_json(runs, "devices")["agents"]
    for row, one in zip(rows, told, strict=True):
        assert [row[key] for key in ("agent", "submodel", "reason")] == [
            one[key] for key in ("agent", "submodel", "reason")
        ]
        for column in ("predicted", "measured"):
            for what, key in (("step", "step"), ("round", "seconds")):
                value, unit = row[f"{what}: {column}"].split(" ")
                shown = float(value) * SECONDS[unit]
                assert shown == pytest.approx(one[column][key], rel=0.01, abs=1e-6), what
            assert row[f"memory: {column}"] == human_bytes(one[column]["memory"])


def test_the_round_under_way_is_shown_and_a_device_pinned(
    browser: Any, server: Any, held: Path
) -> None:
    """Each task's row says the same as `coordinator status`; a pin and its removal take effect."""
    errors = list[str]()
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    address = f"{server.url}/#/{held.name}"
    sign_in(page, f"{address}/round", TOKEN)
    chart = page.get_by_role("img", name="Stages of each device's task")
    chart.wait_for()
    drawn = chart.text_content()
    assert all(word in drawn for word in ("a0", "a1", "a0 trains", "a1: folded", "\u2713"))
    page.get_by_text("The next lease ends after 30.0 s.").wait_for()
    page.get_by_role("button", name="Table").click()
    first, second = read_table(page, "Tasks of round 2")
    assert (first["agent"], first["stage"], first["trains from (s)"]) == ("a0", "train", "1.5")
    assert (second["settled at (s)"], second["lease ends at (s)"]) == ("2.5", "\u2013")

    submodels = ("w0.25-d4.4.4", "w0.5-d4.4.4")  # an agent calibrates several of them
    courses = tuple(TaskCourse("a1", name, (("fetch", 0.0),)) for name in submodels)
    change_now(held, courses=courses)
    page.get_by_role("button", name="Table").click()
    page.get_by_text("a1 w0.25-d4.4.4").wait_for()

    page.goto(f"{address}/devices")
    ask(page, "Pin a submodel", "a1 gets w0.25-d4.4.4", Agent="a1", Submodel="w0.25-d4.4.4")
    assert read_requests(held).pins == {"a1": "w0.25-d4.4.4"}
    ask(page, "Remove a pin", "measurements of a1 decide", Agent="a1")
    assert read_requests(held).pins == {}
    ask(page, "Revoke a device", "does not use certificates", Agent="a1")
    page.keyboard.press("Escape")

    page.goto(f"{address}/network?agent=a0")  # a permanent link with a choice
    page.get_by_role("heading", name="trained by a0").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").last.click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "agent,with submodel,updates,last in round,regions"
    assert [line.split(",")[:4] for line in lines[1:]] == [
        [agent, "w0.5-d4.4.4", "1", "1"] for agent in ("a0", "a1")
    ]

    assert errors == []


def test_every_view_is_accessible_and_loads_nothing_from_elsewhere(
    tmp_path: Path, start: Start, browser: Any, server: Any, broker: str
) -> None:
    """axe finds no violation, on a desk and on a phone, in both colour schemes."""
    coordinator = start_run(start, "--broker", broker, "--rounds", "2")
    for index in range(2):
        start(*AGENT, "join", "--broker", broker, "--name", f"a{index}", "--wait", "120")
    assert coordinator.wait(PATIENCE) == 0
    asked, violations = set[str](), list[str]()

    def check(page: Any, what: str) -> None:
        eventually(lambda: "Loading" not in page.locator("main").inner_text())
        page.add_script_tag(content=AXE.read_text())
        found = page.evaluate("axe.run().then(found => found.violations)")
        violations.extend(f"{what}: {one['id']}: {one['help']}" for one in found)

    for size, scheme in (((1200, 900), "light"), ((390, 800), "dark")):
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=True)
        page = context.new_page()
        page.set_default_timeout(LONGEST_WAIT)
        page.on("request", lambda request: asked.add(request.url))
        page.goto(f"{server.url}/#/?run={RUN}")
        page.get_by_label("Token").wait_for()
        check(page, f"sign-in {scheme}")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Accuracy of each run").wait_for()
        check(page, f"runs {scheme}")
        for view in VIEWS:
            page.goto(f"{server.url}/#/{RUN}/{view}")
            page.get_by_role("navigation", name="Views").wait_for()
            check(page, f"{view} {scheme}")
            for button in page.get_by_role("button", name="Table").all():
                button.click()
            check(page, f"tables of {view} {scheme}")
        page.goto(f"{server.url}/#/{RUN}/devices")
        page.get_by_role("button", name="Enrol a device").click()
        check(page, f"dialog {scheme}")
    assert violations == []
    assert {url for url in asked if not url.startswith(server.url)} == set()
