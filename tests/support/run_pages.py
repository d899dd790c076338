"""Serve the page of runs, and use it in a real browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from benchmarks.web_page.browser import find_chromium, sign_in
from coordinator.built_page import PACKAGE, find_page
from coordinator.observe.now_json import FILE, TaskCourse, read_now
from coordinator.store.run_store import Store
from federated.runtime.connection_limits import listen
from tests.support.memory_federation import RUN as MEMORY_RUN
from tests.support.memory_federation import Member, digits, federate
from tests.support.processes import COORDINATOR, ROOT, Running, Start

__all__ = [
    "AXE",
    "ROLES",
    "RUN",
    "TOKEN",
    "VIEWS",
    "ask",
    "change_now",
    "configured",
    "hold_run",
    "needs_page",
    "open_page",
    "read_table",
    "serve",
    "start_run",
]

AXE = ROOT / "coordinator/web/page/node_modules/axe-core/axe.min.js"
WANTED = ("playwright", PACKAGE)  # `make web` installs both
needs_page = pytest.mark.skipif(
    find_chromium() is None or not all(map(find_spec, WANTED)),
    reason=f"Chromium or one of {', '.join(WANTED)} is not installed: run `make web`",
)
TOKEN = "a-token-for-the-browser"
ROLES = {role: f"{TOKEN}-of-a-{role}" for role in ("viewer", "operator")}
RUN = "seen"
VIEWS = (*("overview", "round", "devices", "rounds", "network", "releases", "log", "settings"),)


@contextmanager
def serve(folder: Path, port: int = 0, token: str = TOKEN) -> Iterator[Any]:
    """Serve the page of the runs in a folder, for an admin with this token, and for those of
    ROLES.
    """
    from coordinator.web.page_server import PageServer, Site
    from coordinator.web.sign_in import TokenHolder

    (folder / "runs").mkdir(exist_ok=True)
    holders = [
        TokenHolder(token),
        TokenHolder(ROLES["viewer"], "viewer", "vera"),
        TokenHolder(ROLES["operator"], "operator", "otto"),
    ]
    site = Site(folder / "runs", find_page("coordinator web"), holders)
    with closing(PageServer(site, listen("127.0.0.1", port))) as made:
        yield made


def start_run(start: Start, *more: str) -> Running:
    settings = ("method.widths=[0.25]", "train.epochs=1", "evaluate.every=1")
    flags = [part for one in settings for part in ("--set", one)]
    named = ("--method", "fedavg", "--name", RUN, "--min-agents", "2", "--format", "json")
    return start(*COORDINATOR, "start", *named, *flags, *more)


@contextmanager
def hold_run(folder: Path) -> Iterator[Path]:
    """Make a run as its coordinator leaves it in round 2, and hold its lock in the context. Yield
    the run's folder.
    """
    settings = {
        "method.name": "fedavg",
        "method.widths": [0.25, 0.5],
        "train.steps": 1,
        "evaluate.devices": False,
    }
    federate(folder, [Member(f"a{i}", digits(i, 2)) for i in range(2)], settings)
    with closing(Store.open(folder / "runs", MEMORY_RUN)) as store:
        courses = (
            TaskCourse("a0", "w0.5-d4.4.4", (("fetch", 0.0), ("train", 1.5)), 30.0),
            TaskCourse("a1", "w0.5-d4.4.4", (("fetch", 0.0), ("train", 1.0), ("folded", 2.5))),
        )
        change_now(store.folder, courses=courses)
        yield store.folder


def change_now(folder: Path, **changed: Any) -> None:
    """Change `now.json`: four seconds after training began, unless stated otherwise."""
    now = read_now(folder)
    assert now is not None
    training = {"phase": "train", "round": 2, "rounds": 5, "elapsed": 4.0, "limit": 60.0}
    (folder / FILE).write_bytes(msgspec.json.encode(replace(now, **{**training, **changed})))


@contextmanager
def configured(
    runs: Path,
    run: str,
    broker: dict[str, Any],
    phones: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[None]:
    """Store other settings of a run's broker, and of phones, while the context lasts."""
    with closing(Store.open(runs, run)) as store:
        facts = store.read_facts()
        changed = {
            **facts.config,
            "broker": {**facts.config.get("broker", {}), **broker},
            "phones": dict(phones),
        }
        store.write_facts(replace(facts, config=changed))
    yield
    with closing(Store.open(runs, run)) as store:
        store.write_facts(facts)


def open_page(
    browser: Any, server: Any, errors: list[str], view: str = "overview", run: str = RUN
) -> Any:
    """Open a view of a run, signed in. errors: gets what the page's scripts raise."""
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    sign_in(page, f"{server.url}/#/{run}/{view}", TOKEN)
    return page


def ask(page: Any, command: str, answer: str = "", token: str = TOKEN, /, **chosen: str) -> None:
    """Click a command and answer its dialog. chosen: values of its fields, by label."""
    page.get_by_role("button", name=command, exact=True).click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Token").input_value() == "", "it is asked for each time"
    for label, value in chosen.items():
        field = dialog.get_by_label(label)
        is_list = field.evaluate("field => field.tagName") == "SELECT"
        (field.select_option if is_list else field.fill)(value)
    dialog.get_by_label("Token").fill(token)
    dialog.get_by_role("button", name=command, exact=True).click()
    page.get_by_text(answer or f"{command}: requested.").first.wait_for()


def read_table(page: Any, title: str) -> list[dict[str, str]]:
    """Return the rows of a table on the page, each with the titles of its columns."""
    table = page.get_by_role("region", name=f"Table: {title}").get_by_role("table")
    table.wait_for()
    head, *rows = (
        [cell.inner_text() for cell in row.locator("th, td").all()]
        for row in table.locator("tr").all()
    )
    return [dict(zip(head, row, strict=True)) for row in rows]
