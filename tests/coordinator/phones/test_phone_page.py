"""The phones' page in a real browser: two of them learn with two PyTorch agents, and the page names
what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.phones.mixed_fleet import count_common_rounds, read_last_accuracy
from coordinator.store import control_requests
from coordinator.store.run_store import Store
from federated.data import loading
from tests.support.brokers import BOTH
from tests.support.phone_pages import (
    ONE_SIZE,
    PAGE_TEST,
    PATIENCE,
    RUN,
    find_violations,
    join,
    list_stored,
    open_page,
    read_state,
    start_run,
)
from tests.support.phone_pictures import make_picture, name_class
from tests.support.processes import AGENT, Start
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *PAGE_TEST]

GOAL, ROUNDS = 0.93, 30  # accuracy on the held-out digits after rounds in which all agents trained


def find_round(folder: Path, agents: set[str], after: int = 0) -> int:
    """Return the last round that folded an update of each agent, or else 0."""
    store = Store.open(folder / "runs", RUN, read_only=True)
    try:
        for number in range(store.rounds_done, after, -1):
            entries = store.read_entries(number)
            if agents <= {one.agent for one in entries if one.outcome == "folded"}:
                return number
        return 0
    finally:
        store.close()


def count_right_answers(page: Any) -> int:
    """Return how many of ten held-out digits a page names."""
    held = loading.load_central("digits")
    return sum(
        name_class(page, x, f"{at}.png") == y
        for at, (x, y) in enumerate(zip(held.x_held[:10], held.y_held, strict=False))
    )


@pytest.mark.parametrize("kind", BOTH)
def test_two_browsers_and_two_pytorch_agents_learn_digits(
    kind: str, tmp_path: Path, start: Start, browser: Any
) -> None:
    """A tab that is closed in mid-round and opened again goes on, and the page predicts."""
    more = "rounds=100000", f"broker.kind={kind}", "fleet.min_agents=4"
    process, broker = start_run(tmp_path, start, *ONE_SIZE, *more)
    shards = ["--data", "digits", "--seed", "0", "--broker", broker]
    for index in (2, 3):
        start(*AGENT, "join", "--name", f"a{index}", "--shard", f"{index}/4", *shards)
    pages = [join(browser, tmp_path, f"p{index}", f"{index}/4") for index in range(2)]
    everyone = {"p0", "p1", "a2", "a3"}

    def wait_for_everyone(after: int = 0) -> int:
        def look() -> int:
            assert process.poll() is None, "the run ended"
            pages[1].wait_for_timeout(100)  # lets Playwright handle the browser's events
            return find_round(tmp_path, everyone, after)

        return eventually(look, PATIENCE)

    wait_for_everyone()
    eventually(lambda: read_state(pages[0]) in {"Training", "Sending the result"})
    url, context = pages[0].url, pages[0].context
    pages[0].close()
    assert "#" not in url, "no token stays in the address"
    pages[0] = context.new_page()
    pages[0].goto(url)
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    done = store.rounds_done
    store.close()
    wait_for_everyone(after=done + 1)

    def train_long_enough() -> bool:
        pages[1].wait_for_timeout(500)
        return count_common_rounds(tmp_path / "runs", RUN, everyone) >= ROUNDS

    eventually(train_long_enough, PATIENCE)
    assert count_right_answers(pages[1]) >= 8
    control_requests.send_request(tmp_path / "runs" / RUN, "stop")
    assert process.wait(PATIENCE) == 0
    assert read_last_accuracy(tmp_path / "runs", RUN) >= GOAL


def test_the_page_says_what_is_wrong(tmp_path: Path, start: Start, browser: Any) -> None:
    """axe finds no violation in any of these states, in both colour schemes."""
    settings = "model.name=mlp", "data.name=digits", "broker.kind=embedded", "fleet.min_agents=2"
    process, _ = start_run(tmp_path, start, *settings)
    page = open_page(browser, tmp_path, "p0", "0/4")
    page.get_by_role("button", name="Train on digits").wait_for()
    assert find_violations(page) == []
    broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"nothing"}
    held = loading.load_central("digits").x_held
    pictures = [make_picture(held[at], f"{at}.png") for at in range(2)]
    page.set_input_files("input[type=file]", [broken, pictures[0], broken, pictures[1]])
    page.get_by_role("button", name="Train on these pictures").click()
    page.get_by_text("broken.png is not a picture that this browser can read").wait_for()
    page.get_by_text("It and 1 more were left out").wait_for()
    page.get_by_text("Class 0: 2 pictures.").wait_for()
    assert find_violations(page) == []
    page.get_by_role("button", name="Train on these pictures").click()
    page.get_by_text("profile: 1 message").wait_for()
    page.get_by_label("Picture to try").set_input_files([broken])
    page.get_by_role("status").get_by_text("broken.png is not a picture").wait_for()
    assert find_violations(page) == []

    second = page.context.new_page()
    second.goto(f"{page.url}#p9@127.0.0.1:1/used")  # a code that does not work excludes no member
    second.get_by_role("alert").get_by_text("The device goes on in the run phones").wait_for()
    page.get_by_text("opened in another tab").wait_for()
    assert find_violations(page) == []
    second.get_by_role("button", name="Pause").click()
    second.get_by_text("Paused: someone pressed Pause").wait_for()
    assert find_violations(second) == []
    process.terminate()
    second.get_by_text("No connection").wait_for()
    assert find_violations(second) == []
    second.get_by_role("button", name="Leave the run").click()
    second.get_by_text("You left the run").wait_for()
    assert find_violations(second) == []
    eventually(lambda: second.wait_for_timeout(100) or list_stored(second) == [])
