"""What the page shows of each device, in a real browser: its power, its heat, and its task with the
lease and the deadline.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.observe.now_json import TaskCourse, read_now
from federated.wire.messages import Condition
from tests.support.run_pages import change_now, needs_page, open_page, read_table
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, needs_page]
DRAWN = """() => {
  const place = (one) => Number(one.getAttribute(one.tagName === "text" ? "x" : "x1"));
  const all = (which) => [...document.querySelectorAll(`main svg[role=img] ${which}`)];
  return {
    ticks: all(".axes text").map((one) => [one.textContent, place(one)]),
    deadline: all(".deadline line").map(place),
    leases: all("text.lease").map(place),
  };
}"""


def test_power_and_heat_are_those_that_each_device_reports(
    browser: Any, server: Any, held: Path
) -> None:
    errors = list[str]()

    def report(*conditions: Condition) -> None:
        now = read_now(held)
        assert now is not None
        members = zip(now.members, conditions, strict=True)
        change_now(held, members=tuple(replace(one, condition=two) for one, two in members))

    def read_conditions() -> list[tuple[str, str]]:
        return [(row["power"], row["heat"]) for row in read_table(page, "Devices")]

    report(Condition(71.6, True, "battery"), Condition(48.2, False, "mains"))
    page = open_page(browser, server, errors, "devices", held.name)
    eventually(
        lambda: read_conditions() == [("battery", "72 \u00b0C, throttled"), ("mains", "48 \u00b0C")]
    )
    report(Condition(None, True, ""), Condition())
    eventually(lambda: read_conditions() == [("\u2013", "throttled"), ("\u2013", "\u2013")])
    assert errors == []


def test_the_lease_and_the_deadline_are_drawn_at_their_seconds(
    browser: Any, server: Any, held: Path
) -> None:
    """The deadline is a line once it is near enough for the axis; before, it is text."""
    errors = list[str]()
    page = open_page(browser, server, errors, "round", held.name)
    page.get_by_text("The phase ends at the latest after 60.0 s.").wait_for()
    assert page.evaluate(DRAWN)["deadline"] == []
    assert page.get_by_text("the deadline").count() == 0

    course = TaskCourse("a0", "w0.5-d4.4.4", (("fetch", 0.0), ("train", 1.5)), 40.0)
    change_now(held, courses=(course,), elapsed=25.0)
    page.get_by_text("the deadline").wait_for()
    assert page.locator("svg .deadline title").text_content() == "deadline: 60.0 s"
    drawn = page.evaluate(DRAWN)
    ticks = {float(text.removesuffix(" s")): x for text, x in drawn["ticks"]}
    second = (ticks[40.0] - ticks[20.0]) / 20
    assert drawn["deadline"] == [pytest.approx(ticks[40.0] + 20 * second, abs=1)]
    assert drawn["leases"] == [pytest.approx(ticks[40.0], abs=1)]
    assert errors == []
