"""The commands of the page, given in a real browser by people of each role."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.web_page.browser import sign_in
from coordinator.access.certificate_authority import Authority
from coordinator.store.control_requests import read_requests
from federated.wire.enrolment_token import parse_token
from federated.wire.links.catalogue import open_link
from tests.support.certificate_authority import member
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.run_pages import (
    ROLES,
    TOKEN,
    ask,
    configured,
    hold_run,
    needs_page,
    open_page,
    read_table,
)

pytestmark = [pytest.mark.slow, needs_page]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Return the folder of the runs, with a finished run of two agents."""
    settings = {"method.name": "fedavg", "model.name": "mlp-small", "method.widths": [0.25]}
    more = {"train.steps": 1, "rounds": 1, "evaluate.every": 1}
    federate(tmp_path, [Member(f"a{i}", digits(i, 2)) for i in range(2)], settings | more)
    return tmp_path / "runs"


def test_roles_limit_what_a_person_may_do(browser: Any, server: Any, tmp_path: Path) -> None:
    """A viewer reads; each command needs the token of its role, and no token is kept."""
    errors = list[str]()
    with hold_run(tmp_path) as folder:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        sign_in(page, f"{server.url}/#/{folder.name}/overview", ROLES["viewer"])
        dialog = page.get_by_role("dialog")
        refusal = "pause: expected a token with the role operator, found one with the role viewer"
        ask(page, "Pause", refusal, ROLES["viewer"])
        assert dialog.is_visible(), "the person may try another token"
        dialog.get_by_role("button", name="Cancel").click()
        assert not read_requests(folder).paused
        ask(page, "Pause", "wrong token", "another-token-of-nobody")
        page.keyboard.press("Escape")
        assert not dialog.is_visible()
        ask(page, "Pause", "", ROLES["operator"])
        assert read_requests(folder).paused
        page.get_by_text("It pauses after this round.").wait_for()
        ask(page, "Stop", "", ROLES["operator"])
        page.get_by_text("It stops after this round.").wait_for()
        ask(page, "Stop now", "", TOKEN)
        assert read_requests(folder).stop == "stop now"
        page.goto(f"{server.url}/#/{folder.name}/devices")
        needed = "revoke: expected a token with the role admin, found one with the role operator"
        ask(page, "Revoke a device", needed, ROLES["operator"])
        assert page.evaluate(
            "[location.href, document.cookie, ...Object.values(localStorage)]"
        ) == [
            f"{server.url}/#/{folder.name}/devices",
            "",
        ], "the page keeps no token where scripts or other pages find it"
    assert errors == []


def test_a_device_is_enrolled_and_another_revoked(
    browser: Any, server: Any, finished: Path, tmp_path: Path
) -> None:
    errors = list[str]()
    with (
        closing(Authority(tmp_path / "pki")) as authority,
        configured(finished, RUN, {"tls": True, "pki": str(tmp_path / "pki")}),
    ):
        member(authority, "a0", tmp_path)
        page = open_page(browser, server, errors, "devices", RUN)
        needed = "enroll: expected a token with the role admin"
        ask(page, "Enrol a device", needed, ROLES["operator"], Name="new", Groups="eu canary")
        page.keyboard.press("Escape")
        ask(page, "Enrol a device", "within an hour and paste:", Name="new", Groups="eu canary")
        told = page.get_by_role("status").inner_text()
        assert parse_token(told.rpartition(" ")[2]).secret
        ask(page, "Enrol a device", "already has a certificate", Name="a0")
        page.keyboard.press("Escape")
        ask(page, "Revoke a device", "a0: revoked 1 certificate", Agent="a0")
        assert authority.registry.list_barred() == {"a0"}
    assert errors == []


def test_a_run_is_released_promoted_and_rolled_back(
    browser: Any, server: Any, finished: Path
) -> None:
    errors, broker = list[str](), "memory://page-commands"
    page = open_page(browser, server, errors, "releases", RUN)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{unused.getsockname()[1]}"
        ask(page, "Promote", f"cannot connect to the broker at mqtt://{gone}", Broker=gone)
        page.keyboard.press("Escape")
    with closing(open_link(broker, "keeps the broker")):
        ask(page, "Promote", "no canary to promote", Broker=broker)
        page.keyboard.press("Escape")
        ask(page, "Release", "1 of 2 agents first: a1", Canary="a1", Broker=broker)
        (row,) = read_table(page, "Versions")
        assert row["role"] == "canary: for a1"
        ask(page, "Roll back", "rolled back version", Broker=broker)
        (row,) = read_table(page, "What happened")[:1]
        assert (row["what"], row["reasons"]) == ("rolled back", "by command")
        ask(page, "Release", "was rolled back at", Canary="a1", Broker=broker)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Despite reasons against it").check()
        dialog.get_by_role("button", name="Release").click()
        page.get_by_text("1 of 2 agents first: a1").wait_for()
        ask(page, "Promote", "is not promoted", Broker=broker)
        dialog.get_by_label("Despite reasons against it").check()
        dialog.get_by_role("button", name="Promote").click()
        page.get_by_text("stable: for all agents").wait_for()
        ask(page, "Collect reports", "(round 1)", Broker=broker)
        ask(page, "Roll back", "nothing to roll back to", Broker=broker)
        page.keyboard.press("Escape")
    happened = [row["what"] for row in read_table(page, "What happened")]
    assert happened == ["promoted", "canary", "rolled back", "canary"]
    assert finished.is_dir()
    assert errors == []


def test_a_command_is_given_by_keyboard_alone(browser: Any, server: Any, tmp_path: Path) -> None:
    errors = list[str]()
    with hold_run(tmp_path) as folder:
        page = open_page(browser, server, errors, "overview", folder.name)
        page.get_by_role("button", name="Pause").wait_for()
        focused = "document.activeElement.innerText"
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate(focused) == "Pause":
                break
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "again", "the field of the token"
        page.keyboard.press("Escape")
        assert page.evaluate(focused) == "Pause", "a closed dialog returns the focus"
        page.keyboard.press("Enter")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_text("Pause: requested.").wait_for()
        assert read_requests(folder).paused
    assert errors == []
