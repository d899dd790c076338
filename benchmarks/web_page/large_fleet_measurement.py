"""Measure the web page beside a fleet of a thousand agents: its long tasks and its memory in the
browser, and the coordinator's rounds with and without an open page.

The agents are raw clients in this process, each with its own socket; coordinator, broker, the
page's server and the browser are real processes.
"""

from __future__ import annotations

import math
import re
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.final_model_recomputation import read_durations
from benchmarks.raw_agents.connection_limits import make_room
from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from benchmarks.scale import make_flags
from benchmarks.web_page.browser import open_chromium, sign_in
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import process, python_command
from coordinator.web.defaults import TOKEN
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = ["PageLoad", "compare_quarters", "is_heap_flat", "measure", "percentile"]

RUN = "page"
SILENCE = 300.0  # seconds without a round until the benchmark fails
HEAP_EVERY = 5.0  # seconds between samples of the page's memory
GROWTH = 1.05  # of the page's memory, from the first quarter to the last, that counts as flat
# rounds until the page's memory counts. In two rounds, V8 compiles the code that shows every stage
# of a task, and enlarges its cache of numbers as text: about 0.2 MB, once.
WARM_UP = 2
DELAY = 30.0  # seconds that an agent trains; with it, a thousand agents send about 200 messages/s
SETTINGS = {
    "method.name": "fedavg",
    "method.widths": [0.5],
    "train.steps": 1,
    "evaluate.every": 100_000,
    "evaluate.between": False,
    "evaluate.devices": False,
    "evaluate.calibrate": "coordinator",
    "evaluate.examples": 8,
    "fleet.wait": 300,
    "fleet.deadline": 280,
}
# the page notes its long tasks (over 50 ms) itself
OBSERVE = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) =>
    window.longTasks.push(...list.getEntries().map((entry) => entry.duration)),
  ).observe({ type: "longtask" });
}"""
HEAP = "() => { gc(); return performance.memory.usedJSHeapSize; }"
FLAGS = ("--js-flags=--expose-gc", "--enable-precise-memory-info")


@dataclass(frozen=True)
class PageLoad:
    """Result of the benchmark.

    agents: number of agents
    events: messages of agents in a second, while the page was open
    watched: seconds for which the page was open
    long_tasks: number of tasks of the page over 50 ms
    p99: of their durations in milliseconds; 0 without any
    heaps: for each time that the page was opened, bytes of its memory after WARM_UP rounds, in the
        order of the samples
    flat: whether each of these is: see `is_heap_flat`
    with_page, without_page: median seconds of a round
    ratio: of the two
    processor: the same ratio for the coordinator's seconds of processor time in a round
    """

    agents: int
    events: float
    watched: float
    long_tasks: int
    p99: float
    heaps: tuple[tuple[int, ...], ...]
    flat: bool
    with_page: float
    without_page: float
    ratio: float
    processor: float


@dataclass(frozen=True)
class Watched:
    """Measurements in the browser.

    seconds: for which the page was open
    tasks: milliseconds of each task over 50 ms
    heaps: monotonic time and bytes of each sample of the page's memory
    """

    seconds: float
    tasks: tuple[float, ...]
    heaps: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Block:
    """Measurements of successive rounds.

    began: monotonic time at which the first one began
    seconds: of each round
    processor: the coordinator's seconds of processor time
    events: messages of agents in a second
    """

    began: float
    seconds: tuple[float, ...]
    processor: float
    events: float


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at most the other share exceed; 0 without any."""
    found = sorted(values)
    return found[math.ceil(share * len(found)) - 1] if found else 0.0


def is_heap_flat(heaps: Sequence[int]) -> bool:
    """Return True if the memory hardly grows from the first quarter of the samples to the last. Of
    each quarter, the median counts: a task at its end has more stages to show than at its
    beginning, so that the page needs most memory at the end of a round. False without samples.
    """
    first, last = compare_quarters(heaps)
    return 0 < last <= GROWTH * first


def compare_quarters(heaps: Sequence[int]) -> tuple[int, int]:
    """Return the median bytes of the first and of the last quarter; 0 without any."""
    quarter = max(1, len(heaps) // 4)
    first, last = heaps[:quarter], heaps[-quarter:]
    return (statistics.median_low(first), statistics.median_low(last)) if heaps else (0, 0)


class CountedFleet:
    """A fleet at work, whose messages are counted."""

    def __init__(self, stack: ExitStack, folder: Path, agents: int) -> None:
        self.folder, self.sent = folder, 0
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "mosquitto", folder / "broker"))
        start = f"start --name {RUN} --data digits --model mlp-small --rounds 100000"
        command = python_command(
            *("coordinator.cli", *start.split(), "--min-agents", str(agents)),
            *("--broker", broker.address, "--runs", str(folder), *make_flags(SETTINGS)),
            *("--format", "json"),
        )
        self.coordinator = stack.enter_context(process("coordinator", command, folder))
        self._usage = psutil.Process(self.coordinator.popen.pid)
        host, port = broker.address.rsplit(":", 1)
        how = Raw(delay=DELAY, alter=(self._count,))
        names = [f"a{index:04d}" for index in range(agents)]
        self._fleet = RawFleet(RUN, names, (host, int(port)), how)
        stack.callback(self._fleet.close)

    def _count(self, agent: str, topic: str, payload: bytes) -> list[tuple[str, bytes]]:
        self.sent += 1
        return [(topic, payload)]

    def run_rounds(self, count: int, skipped: int = 1) -> Block:
        """Run the agents until this many whole rounds are done. skipped: rounds before them, of
        which the first is in progress. Raises FleetError.
        """
        first = self._run_until(len(read_durations(self.folder, RUN)) + skipped)
        start, sent, used = time.monotonic(), self.sent, self._measure()
        last = self._run_until(first + count)
        seconds = read_durations(self.folder, RUN)[first:last]
        passed = time.monotonic() - start
        return Block(start, tuple(seconds), self._measure() - used, (self.sent - sent) / passed)

    def _measure(self) -> float:
        return float(sum(self._usage.cpu_times()[:2]))

    def _run_until(self, rounds: int) -> int:
        """Run the agents until this many rounds are done; return how many there are."""
        looked, until = 0.0, time.monotonic() + SILENCE
        while True:
            self._fleet.turn(0.05)
            if (now := time.monotonic()) - looked < 0.25:
                continue
            looked = now
            if (done := len(read_durations(self.folder, RUN))) >= rounds:
                return done
            if self.coordinator.popen.poll() is not None or now > until:
                raise FleetError(
                    f"expected round {rounds} within {SILENCE:.0f} s; the end of the "
                    f"coordinator's log:\n{self.coordinator.tail()}"
                )


def measure(folder: Path, agents: int, rounds: int, blocks: int, say: Say) -> PageLoad:
    """Run the benchmark: blocks of rounds without and with an open page, in turn. Raises
    ConfigError without a browser or enough connections, FleetError if a process fails.
    """
    make_room(agents, say)
    pages, rests, watched = list[Block](), list[Block](), list[Watched]()
    with ExitStack() as stack:
        fleet = CountedFleet(stack, folder, agents)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        url = start_server(stack, folder)
        for _ in range(blocks):
            rests.append(fleet.run_rounds(rounds))
            say(f"without a page: {statistics.median(rests[-1].seconds):.2f} s a round")
            closing_time = threading.Event()
            stack.callback(closing_time.set)
            seen = pool.submit(watch_page, url, folder, closing_time)
            pages.append(fleet.run_rounds(rounds, WARM_UP))
            closing_time.set()
            watched.append(seen.result())
            say(
                f"with a page: {statistics.median(pages[-1].seconds):.2f} s a round, "
                f"{pages[-1].events:.0f} events/s, {len(watched[-1].tasks)} long tasks"
            )
    return summarise(agents, rests, pages, watched)


def start_server(stack: ExitStack, folder: Path) -> str:
    """Start `coordinator web`, and return its address."""
    command = python_command(
        *("coordinator.cli", "web", "--listen", "127.0.0.1:0", "--runs", str(folder))
    )
    server = stack.enter_context(process("web", command, folder))
    until = time.monotonic() + SILENCE
    while (found := re.search(r"open (http://\S+) and sign in", server.read())) is None:
        if server.popen.poll() is not None or time.monotonic() > until:
            raise FleetError(f"the page's server failed; its log:\n{server.tail()}")
        time.sleep(0.1)
    return found[1]


def watch_page(url: str, folder: Path, closing_time: threading.Event) -> Watched:
    """Open the view with the most changes until it is time to close it."""
    token, heaps = (folder / TOKEN).read_text().split()[0], list[tuple[float, int]]()
    with open_chromium(*FLAGS) as browser:
        page = browser.new_page()
        sign_in(page, f"{url}/#/{RUN}/round", token)
        page.evaluate(OBSERVE)
        start = time.monotonic()
        while not closing_time.wait(HEAP_EVERY):
            heaps.append((time.monotonic(), int(page.evaluate(HEAP))))
        return Watched(
            time.monotonic() - start, tuple(page.evaluate("window.longTasks")), tuple(heaps)
        )


def summarise(
    agents: int, rests: list[Block], pages: list[Block], watched: list[Watched]
) -> PageLoad:
    with_page, without = (
        statistics.median(seconds for block in blocks for seconds in block.seconds)
        for blocks in (pages, rests)
    )
    used, used_without = (sum(block.processor for block in blocks) for blocks in (pages, rests))
    tasks = [task for one in watched for task in one.tasks]
    heaps = tuple(
        tuple(heap for time, heap in one.heaps if time > block.began)
        for one, block in zip(watched, pages, strict=True)
    )
    return PageLoad(
        agents,
        round(statistics.fmean(block.events for block in pages), 1),
        round(sum(one.seconds for one in watched), 1),
        len(tasks),
        round(percentile(tasks, 0.99), 1),
        heaps,
        all(map(is_heap_flat, heaps)),
        round(with_page, 3),
        round(without, 3),
        round(with_page / without, 3),
        round(used / used_without, 3),
    )
