"""Take pictures of the web page while the demo's agents train: those of the README, or every view
on a desk and on a phone, light and dark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from benchmarks.generated_docs.live_view import start_agents
from benchmarks.web_page.browser import open_chromium, sign_in
from coordinator.broker import local_broker as brokers
from coordinator.built_page import find_page
from coordinator.simulate.demo_fleet import (
    DEVICES,
    Running,
    process,
    python_command,
    run_command,
)
from coordinator.views.agent_table import describe_agents
from coordinator.views.run_status import describe_status
from coordinator.web.page_server import PageServer, Site
from coordinator.web.sign_in import TokenHolder
from federated.defaults import PARTITION
from federated.errors import FleetError, StoreError
from federated.runtime.connection_limits import listen

__all__ = ["README", "list_views", "take_pictures"]

RUN, TOKEN = "demo", "a-token-for-pictures"
DONE = 3  # finished rounds before the first picture, so that charts have points
PATIENCE = 900.0  # seconds for these rounds, on a busy machine
CANARY, STABLE = "pi", "phone"  # agents of the run that infer with its releases
MIXED = 120.0  # seconds in which a moment is sought when the agents do different things
COMPLETE = "() => !document.querySelector('main').innerText.includes('Loading')"
SETTLED = 800  # milliseconds for a view to be drawn
RUNS = "runs"  # the list of runs, with the run chosen for comparison
VIEWS = (
    *(RUNS, "overview", "round", "devices", "rounds", "network", "releases", "log", "settings"),
)
SIZES = {"desk": (1280, 800), "phone": (390, 844)}


@dataclass(frozen=True)
class Shot:
    """A picture of one view.

    file: its name, in the folder of the pictures.
    view: name of the view in the page's address, or RUNS.
    size: width and height of the window in pixels; of height 0, the whole page.
    scheme: of colours.
    """

    file: str
    view: str
    size: tuple[int, int]
    scheme: Literal["light", "dark"] = "light"


@dataclass(frozen=True)
class PicturedRun:
    """A run of the demo's agents.

    runs: folder of the run's folder, and of the logs.
    broker: its address.
    coordinator: its process.
    """

    runs: Path
    broker: str
    coordinator: Running


README = (
    Shot("page_round.png", "round", (900, 390)),
    Shot("page_overview.png", "overview", (900, 770), "dark"),
)


def list_views() -> list[Shot]:
    """Return a picture of every view, on a desk and on a phone, light and dark."""
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    return [
        Shot(f"{view}-{place}-{scheme}.png", view, (SIZES[place][0], 0), scheme)
        for view, place, scheme in product(VIEWS, SIZES, schemes)
    ]


def take_pictures(into: Path, folder: Path, shots: Sequence[Shot]) -> None:
    """Run the demo's four agents on digits, and write pictures of the page. This takes about two
    minutes, and longer with a picture of the releases. folder: of the run. Raises ConfigError,
    MissingExtra, FleetError.
    """
    page_files = find_page("python -m benchmarks page")
    with ExitStack() as stack:
        run = stack.enter_context(run_agents(folder))
        browser = stack.enter_context(open_chromium())
        site = Site(run.runs, page_files, [TokenHolder(TOKEN)])
        server = stack.enter_context(closing(PageServer(site, listen("127.0.0.1", 0))))
        wait_for_rounds(run, DONE)
        if any(shot.view == "releases" for shot in shots):
            start_canary(stack, run)
        for shot in shots:
            take_picture(browser, server.url, into, shot, run.runs)


def take_picture(browser: Any, url: str, into: Path, shot: Shot, runs: Path) -> None:
    width, height = shot.size
    viewport = {"width": width, "height": height or SIZES["desk"][1]}
    with closing(browser.new_context(viewport=viewport, color_scheme=shot.scheme)) as context:
        page = context.new_page()
        view = f"?run={RUN}" if shot.view == RUNS else f"{RUN}/{shot.view}"
        sign_in(page, f"{url}/#/{view}", TOKEN)
        if shot.view == "round":
            wait_for_variety(runs)
        page.wait_for_function(COMPLETE)
        page.wait_for_timeout(SETTLED)
        page.screenshot(path=into / shot.file, full_page=not height)


@contextmanager
def run_agents(folder: Path) -> Iterator[PicturedRun]:
    """Run the demo's agents until the context ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "auto", folder / "broker"))
        options = f"--name {RUN} --rounds 500 --min-agents {len(DEVICES)} --set evaluate.every=1"
        command = python_command(
            *("coordinator.cli", "start", "--broker", broker.address, "--runs", str(folder)),
            *options.split(),
        )
        coordinator = stack.enter_context(process("coordinator", command, folder))
        start_agents(stack, broker.address, folder)
        yield PicturedRun(folder, broker.address, coordinator)


def start_canary(stack: ExitStack, run: PicturedRun) -> None:
    """Release the run's last round to two agents that infer, and a later round to one of them."""
    release(run)
    for name in (STABLE, CANARY):
        stack.enter_context(process(f"infer-{name}", infer_command(run, name), run.runs))
    wait_for_rounds(run, count_rounds(run.runs) + 1)
    release(run, "--canary", CANARY, "--wait", str(PATIENCE))


def release(run: PicturedRun, *options: str) -> None:
    """Release the last round's submodels of the agents that infer: an export of all takes long."""
    agents = describe_agents(RUN, run.runs)["agents"]
    wanted = {one["submodel"] for one in agents if one["agent"] in (CANARY, STABLE)}
    bundle = run.runs / f"release-{count_rounds(run.runs)}"
    submodels = [part for name in sorted(wanted) for part in ("--submodel", name)]
    for command in (
        ["export", "--out", str(bundle), *submodels],
        ["release", "--bundle", str(bundle), "--broker", run.broker, *options],
    ):
        command += [RUN, "--runs", str(run.runs), "--format", "json"]
        made = python_command("coordinator.cli", *command)
        run_command(command[0], made, run.runs, say=lambda line: None)


def infer_command(run: PicturedRun, name: str) -> list[str]:
    """Return the command with which a device of the demo infers, and tests releases on its data."""
    index = [device.name for device in DEVICES].index(name)
    shard = ("--data", "digits", "--shard", f"{index}/{len(DEVICES)}", "--partition", PARTITION)
    return python_command(
        *("edge_agent.cli", "infer", "--broker", run.broker, "--run", RUN, "--name", name),
        *("--store", str(run.runs / "models" / name), "--threads", "1", "--mqtt", *shard),
    )


def wait_for_rounds(run: PicturedRun, number: int) -> None:
    """Wait until this many rounds are done. Raises FleetError."""
    until = time.monotonic() + PATIENCE
    while (done := count_rounds(run.runs)) < number:
        if run.coordinator.popen.poll() is not None or time.monotonic() > until:
            raise FleetError(
                f"expected {number} rounds, found {done}; the end of the coordinator's log:\n"
                f"{run.coordinator.tail()}"
            )
        time.sleep(0.5)


def count_rounds(runs: Path) -> int:
    try:
        return int(describe_status(RUN, runs)["rounds_done"])
    except StoreError:
        return 0  # not begun


def wait_for_variety(runs: Path) -> None:
    """Wait for a moment when the agents train and are at three different stages; give up after a
    while.
    """
    until = time.monotonic() + MIXED
    while time.monotonic() < until:
        now = describe_status(RUN, runs)["now"] or {"phase": "", "courses": ()}
        stages = {course["stages"][-1][0] for course in now["courses"]}
        if now["phase"] == "train" and len(stages) >= 3:
            return
        time.sleep(0.1)
