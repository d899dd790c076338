"""What every view of the page has, in a real browser: tables and CSV files of its charts, a
permanent link, room on a phone, and no script but the page's own; and views of special runs.
"""

from __future__ import annotations

import csv
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.web_page.browser import LONGEST_WAIT, sign_in
from coordinator.built_page import find_page
from coordinator.store.run_store import Store
from coordinator.views.run_status import describe_status
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.run_pages import (
    TOKEN,
    VIEWS,
    needs_page,
    open_page,
    read_table,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, needs_page]
CHARTS = {"overview": 1, "round": 1, "devices": 1, "rounds": 2, "network": 2}
NARROW = {"width": 320, "height": 640}
NOTE_VIOLATIONS = """window.refused = [];
addEventListener("securitypolicyviolation", (one) => refused.push(one.violatedDirective));"""
INLINE = """() => {
  const script = document.createElement("script");
  script.textContent = "document.title = 1";
  document.body.append(script);
}"""
FEDAVG = {
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "method.widths": [0.25],
    "train.steps": 1,
    "evaluate.devices": False,
}


def open_view(page: Any, server: Any, run: str, view: str) -> None:
    """Open a view by its link, and wait until it is complete."""
    page.goto(f"{server.url}/#/{run}/{view}")
    page.locator(f'nav [aria-current][href$="/{view}"]').wait_for()
    page.locator("main section.card").first.wait_for()
    eventually(lambda: "Loading" not in page.locator("main").inner_text())


def test_every_chart_has_a_table_and_a_csv_file_with_the_same_rows(
    browser: Any, server: Any, held: Path
) -> None:
    errors = list[str]()
    page = open_page(browser, server, errors, "overview", held.name)
    for view in VIEWS:
        open_view(page, server, held.name, view)
        charts = page.locator("main section.card").filter(has=page.locator("svg[role=img]"))
        assert charts.count() == CHARTS.get(view, 0), view
        titles = [chart.locator("h2").inner_text() for chart in charts.all()]
        for title in titles:
            card = page.locator("main section.card").filter(
                has=page.get_by_role("heading", name=title, exact=True)
            )
            card.get_by_role("button", name="Table").click()
            with page.expect_download() as saved:
                card.get_by_role("button", name="CSV").click()
            with Path(saved.value.path()).open(newline="") as file:
                head, *rows = csv.reader(file)
            shown = read_table(page, title)
            assert [list(row) for row in shown] == [head] * len(rows), title
            cells = [[cell.replace("\u2013", "") for cell in row.values()] for row in shown]
            assert cells == [[cell.replace("\u2013", "") for cell in row] for row in rows], title
    assert errors == []


def test_on_a_small_phone_only_tables_scroll_sideways(
    browser: Any, server: Any, held: Path
) -> None:
    context = browser.new_context(viewport=NARROW, is_mobile=True, has_touch=True)
    page, wide = context.new_page(), list[str]()
    page.set_default_timeout(LONGEST_WAIT)

    def check(what: str) -> None:
        outer = page.evaluate("document.documentElement.scrollWidth")
        if outer > NARROW["width"]:
            wide.append(f"{what}: {outer} pixels")

    page.goto(f"{server.url}/#/?run={held.name}")
    page.get_by_label("Token").wait_for()
    check("sign-in")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Accuracy of each run").wait_for()
    check("runs")
    for view in VIEWS:
        open_view(page, server, held.name, view)
        check(view)
        for button in page.get_by_role("button", name="Table").all():
            button.click()
        check(f"tables of {view}")
        for button in page.locator("main .control > button").all():
            button.click()
            check(f"{view}: {button.inner_text()}")
            page.keyboard.press("Escape")
    assert wide == []
    open_view(page, server, held.name, "devices")
    inner = page.get_by_role("region", name="Table: Devices", exact=True)
    assert inner.evaluate("table => table.scrollWidth > table.clientWidth"), "it has many columns"
    assert inner.evaluate("table => { table.scrollLeft = 1e6; return table.scrollLeft }") > 0


def test_a_link_to_a_view_leads_there_after_the_sign_in(
    browser: Any, server: Any, held: Path
) -> None:
    headings = dict[str, list[str]]()
    page = open_page(browser, server, [], "overview", held.name)
    for view in VIEWS:
        open_view(page, server, held.name, view)
        headings[view] = page.locator("main h2").all_inner_texts()
    assert len({str(found) for found in headings.values()}) == len(VIEWS)
    for view, found in headings.items():
        with closing(browser.new_context()) as context:
            other = context.new_page()
            sign_in(other, f"{server.url}/#/{held.name}/{view}", TOKEN)
            open_view(other, server, held.name, view)
            assert other.locator("main h2").all_inner_texts() == found


def test_no_view_has_a_script_or_a_style_that_the_policy_forbids(
    browser: Any, server: Any, held: Path
) -> None:
    page = browser.new_page()
    page.add_init_script(NOTE_VIOLATIONS)
    sign_in(page, f"{server.url}/#/{held.name}/overview", TOKEN)
    for view in VIEWS:
        open_view(page, server, held.name, view)
        inline = page.locator("script:not([src]), style, [style], [onclick], [onload], [onerror]")
        assert inline.count() == 0, view
    assert page.evaluate("refused") == []
    page.evaluate(INLINE)
    eventually(lambda: page.evaluate("refused") == ["script-src-elem"])


def test_the_built_page_contains_only_files_of_its_own_and_licences() -> None:
    static = find_page("this test")
    page = (static / "index.html").read_text()
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == ["data:,", "style.css", "page.js"]
    assert re.search(r"<script[^>]*>[^<]", page) is None
    licences = (static / "licences.txt").read_text()
    assert {"preact", "d3-scale"} <= {line.split(" ")[0] for line in licences.splitlines() if line}


def test_the_epsilon_of_a_private_run_is_shown(browser: Any, server: Any, tmp_path: Path) -> None:
    members = [Member(f"a{index}", digits(index, 2)) for index in range(2)]
    federate(tmp_path, members, {**FEDAVG, "private.noise": 1.5, "private.clip": 1.0})
    told = describe_status(RUN, tmp_path / "runs")["now"]["epsilon"]
    page = open_page(browser, server, [], "overview", RUN)
    fact = page.locator(".facts > div").filter(has_text="Epsilon")
    assert float(fact.locator("dd").inner_text()) == pytest.approx(told, rel=1e-3)


def test_runs_are_compared_side_by_side(browser: Any, server: Any, tmp_path: Path) -> None:
    members = [Member(f"a{index}", digits(index, 2)) for index in range(2)]
    federate(tmp_path, members, FEDAVG)
    runs, errors = tmp_path / "runs", list[str]()
    shutil.copytree(runs / RUN, runs / "other")
    with closing(Store.open(runs, "other")) as store:
        facts = store.read_facts()
        store.write_facts(replace(facts, config={**facts.config, "seed": 7}))
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    sign_in(page, f"{server.url}/", TOKEN)
    for name in (RUN, "other"):
        page.get_by_label(f"Compare {name}").check()
    assert page.url.endswith(f"/#/?run={RUN}&run=other"), "a permanent link"
    assert read_table(page, "Settings that differ") == [{"setting": "seed", RUN: "0", "other": "7"}]
    page.get_by_role("button", name="Table").click()
    rows = read_table(page, "Accuracy of each run")
    (first,), (second,) = (
        [row for row in rows if row["run"].startswith(f"{name}: ")] for name in (RUN, "other")
    )
    assert first["accuracy"] == second["accuracy"]
    assert errors == []
