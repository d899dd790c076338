"""Train digits with two browsers and two PyTorch agents, all real processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.phones.phone_pages import (
    HOST,
    find_code,
    join,
    list_start_arguments,
    make_page,
    scan_code,
)
from benchmarks.phones.python_training import repeat_training
from benchmarks.web_page.browser import open_chromium
from coordinator.broker.local_addresses import find_free_port
from coordinator.observe.round_records import Entry
from coordinator.simulate.demo_fleet import Running, process, python_command, wait_for_words
from coordinator.store import control_requests
from coordinator.store.run_store import Store
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = ["MixedTraining", "count_common_rounds", "measure", "read_last_accuracy"]

RUN = "web"
BROWSERS, NATIVES = ("b0", "b1"), ("n2", "n3")
SETTINGS = (
    *("model.name=mlp", "data.name=digits", "method.name=fedavg", "method.widths=[1.0]"),
    "rounds=100000",  # PyTorch agents train alone until the graphs for browsers are exported
)
SILENCE = 300.0  # seconds without a finished round until the benchmark fails
LOOK = 500  # milliseconds between two looks at the run
OTHER_PATHS = ("/phone/digits", "/phone/join")  # data, not the page


@dataclass(frozen=True)
class MixedTraining:
    """Result of the benchmark.

    accuracy: of the coordinator's last evaluation on held-out digits, 0 to 1
    loss_max_abs_diff: largest difference of a step's loss, in the browsers' last trainings, from
        that of ONNX Runtime in Python
    payload_bytes: that a browser downloads for the page, compressed
    first_step_s: seconds from a browser's first training task to its first step, with the load of
        the runtime and of the graph
    step_ms_browser, step_ms_native: median milliseconds of a step in the browsers, and with PyTorch
        in an agent
    memory_mb: largest unique set size of a browser's process that showed a page
    rounds: that were trained, the first ones by the PyTorch agents alone
    """

    accuracy: float
    loss_max_abs_diff: float
    payload_bytes: int
    first_step_s: float
    step_ms_browser: float
    step_ms_native: float
    memory_mb: float
    rounds: int


@dataclass(frozen=True)
class BrowserRecord:
    """What the browsers showed during the run.

    trainings: of each page, as `phone_pages.RECORD` keeps them.
    payload: bytes that the first page downloaded.
    memory: bytes of the largest page's process.
    """

    trainings: list[list[dict[str, Any]]]
    payload: int
    memory: int


def measure(folder: Path, rounds: int, kind: str, say: Say) -> MixedTraining:
    """Run the benchmark. kind: of the broker. Raises ConfigError without a browser, MissingExtra
    without the built page, FleetError if a process fails.
    """
    settings = *SETTINGS, f"broker.kind={kind}", "fleet.min_agents=4"
    ports = find_free_port(HOST, 0), find_free_port(HOST, 0)
    arguments = list_start_arguments(folder, RUN, ports, settings)
    with ExitStack() as stack:
        browser = stack.enter_context(open_chromium())
        command = python_command("coordinator.cli", *arguments)
        coordinator = stack.enter_context(process("coordinator", command, folder))
        wait_for_words(coordinator, "phones join at")
        for name in NATIVES:
            command = make_agent_command(name, f"{HOST}:{ports[0]}", folder)
            stack.enter_context(process(name, command, folder))
        pages, requests = list[Any](), list[Any]()

        def note(request: Any) -> None:  # Playwright marks its handlers, which must be functions
            requests.append(request)

        for name in BROWSERS:
            page = make_page(browser)
            if not pages:
                page.on("requestfinished", note)
            pages.append(join(scan_code(page, find_code(folder, name), find_shard(name))))
        memory = wait_for_rounds(rounds, coordinator, folder / "runs", pages[0], say)
        control_requests.send_request(folder / "runs" / RUN, "stop")
        if coordinator.popen.wait(SILENCE) != 0:
            raise FleetError(f"the run failed; the end of its log:\n{coordinator.tail()}")
        trainings = [page.evaluate("window.trainings") for page in pages]
        found = BrowserRecord(trainings, sum_payload(requests), memory)
    return summarise(folder, found)


def make_agent_command(name: str, broker: str, folder: Path) -> list[str]:
    return python_command(
        *("edge_agent.cli", "join", "--name", name, "--run", RUN, "--broker", broker),
        *("--data", "digits", "--seed", "0", "--shard", find_shard(name)),
        *("--trainer", "pytorch", "--spool", str(folder / "spool" / name), "--wait", "120"),
    )


def find_shard(name: str) -> str:
    return f"{name[-1]}/{len(BROWSERS) + len(NATIVES)}"


def wait_for_rounds(rounds: int, coordinator: Running, runs: Path, page: Any, say: Say) -> int:
    """Wait until all agents have trained in this many rounds. Return the bytes of the largest
    process of a page. Raises FleetError.
    """
    done, memory, until = 0, 0, time.monotonic() + SILENCE
    while done < rounds:
        page.wait_for_timeout(LOOK)  # also lets Playwright handle the browser's events
        memory = max(memory, measure_pages())
        if (now := count_common_rounds(runs, RUN, {*BROWSERS, *NATIVES})) > done:
            done, until = now, time.monotonic() + SILENCE
            say(f"all agents trained in {done} rounds; a page uses up to {memory / 1e6:.0f} MB")
        if coordinator.popen.poll() is not None or time.monotonic() > until:
            raise FleetError(
                f"expected {rounds} rounds of all agents, found {done}; the end of the "
                f"coordinator's log:\n{coordinator.tail()}"
            )
    return memory


def measure_pages() -> int:
    """Return the unique set size, in bytes, of the largest process of a page."""
    sizes = [0]
    for one in psutil.Process().children(recursive=True):
        try:
            if "--type=renderer" in one.cmdline():
                sizes.append(one.memory_full_info().uss)
        except psutil.NoSuchProcess:
            continue
    return max(sizes)


def sum_payload(requests: Sequence[Any]) -> int:
    """Return the bytes that a page downloaded, without its data."""
    return sum(
        int(one.sizes()["responseBodySize"])
        for one in requests
        if urlsplit(one.url).path not in OTHER_PATHS
    )


# ---- the records of the run ----------------------------------------------------------------------


def count_common_rounds(runs: Path, run: str, agents: Set[str]) -> int:
    """Return the number of rounds in which all these agents trained."""
    with closing(Store.open(runs, run, read_only=True)) as store:
        folded = [
            {one.agent for one in store.read_entries(number) if one.outcome == "folded"}
            for number in range(1, store.rounds_done + 1)
        ]
    return sum(one >= agents for one in folded)


def read_last_accuracy(runs: Path, run: str) -> float:
    """Return the accuracy of the last evaluation on the coordinator's held-out digits. Raises
    StoreError, FleetError if there was none.
    """
    with closing(Store.open(runs, run, read_only=True)) as store:
        for number in range(store.rounds_done, 0, -1):
            for score in store.read_scores(number):
                if score.view == "central":
                    return score.accuracy
    raise FleetError(f"run '{run}': no round was evaluated on held-out digits")


def summarise(folder: Path, found: BrowserRecord) -> MixedTraining:
    runs = folder / "runs"
    with closing(Store.open(runs, RUN, read_only=True)) as store:
        rounds = store.rounds_done
        entries = [one for number in range(1, rounds + 1) for one in store.read_entries(number)]
    firsts = [next(one["seconds"][0] for one in page if one["seconds"]) for page in found.trainings]
    return MixedTraining(
        accuracy=round(read_last_accuracy(runs, RUN), 4),
        loss_max_abs_diff=find_largest_difference(folder, found.trainings, rounds),
        payload_bytes=found.payload,
        first_step_s=round(statistics.median(firsts), 3),
        step_ms_browser=round(1000 * find_median_step(entries, BROWSERS), 3),
        step_ms_native=round(1000 * find_median_step(entries, NATIVES), 3),
        memory_mb=round(found.memory / 1e6, 1),
        rounds=rounds,
    )


def find_largest_difference(
    folder: Path, trainings: Sequence[Sequence[dict[str, Any]]], rounds: int
) -> float:
    """Return the largest difference of a step's loss in the last round from Python's. Raises
    FleetError if a browser did not train in it.
    """
    largest = 0.0
    for name, known in zip(BROWSERS, trainings, strict=True):
        losses = [loss for one in known if one["round"] == rounds for loss in one["losses"]]
        place = folder / "runs", RUN, rounds, name, find_shard(name), folder
        wanted = repeat_training(*place)
        if len(losses) != len(wanted):
            raise FleetError(
                f"{name}: expected {len(wanted)} steps in round {rounds}, found {len(losses)}"
            )
        largest = max(largest, *(abs(a - b) for a, b in zip(losses, wanted, strict=True)))
    return largest


def find_median_step(entries: Sequence[Entry], agents: Sequence[str]) -> float:
    """Return the median of the seconds of a step that agents reported."""
    return statistics.median(one.step for one in entries if one.agent in agents and one.step)
