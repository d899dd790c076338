"""`python -m benchmarks pacing`: check that four agents of unequal speed get submodels that take
equally long, and that an agent that slows down gets a smaller one.

The first agent is limited to one processor by affinity, the others to fractions of one by control
groups (or by stopping and continuing, if control groups are not writable). Real processes use a
real broker. The slow agent's training process is stopped for two thirds of the time, from outside,
so that only the times of its rounds show it, not its limits or its profile.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import psutil

from benchmarks.output_path_checks import make_folder
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import Running, process, python_command, wait_for_words
from coordinator.store.run_store import Store
from federated.errors import FleetError, StoreError
from federated.runtime.console import FORMAT, Say, print_result, report_errors, speaker

__all__ = ["AgentRound", "RoundCounts", "command", "compare_agents", "measure", "summarise"]

CPUS = {"a0": 1.0, "a1": 0.4, "a2": 0.2, "a3": 0.1}
SLOWED, FACTOR = "a1", 3.0
# close enough that neighbours take similar times
WIDTHS = [round(float(width), 3) for width in np.geomspace(0.12, 1.0, 30)]
LAST = 3  # number of rounds at the end of the steady part whose times are compared
RUN = "pacing"
ON_ONE_PROCESSOR = (
    "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from edge_agent.cli.main "
    "import main; main()"
)
CYCLE = 0.15  # seconds of one stop and continuation
SILENCE = 240.0  # seconds without a round until the benchmark fails
SETTINGS = (
    "method.name=fedavg",
    f"method.widths={WIDTHS}",
    "model.name=preresnet-10",
    "train.batch=64",
    "train.steps=16",
    "train.epochs=100",
    "evaluate.every=1000",
    "evaluate.between=false",
    "evaluate.devices=false",
    "evaluate.calibrate=coordinator",
    "evaluate.examples=64",
    "fleet.wait=120",
)


@dataclass(frozen=True)
class RoundCounts:
    """Numbers of rounds.

    steady: before the slow-down
    slow: during the slow-down
    after: after the slow-down
    """

    steady: int = 8
    slow: int = 5
    after: int = 6

    @property
    def total(self) -> int:
        return self.steady + self.slow + self.after


@dataclass(frozen=True)
class AgentRound:
    """One agent in one round.

    seconds: from task to acceptance
    predicted: predicted seconds
    step: mean seconds of a step
    reason: reason for this submodel
    """

    round: int
    agent: str
    submodel: str
    outcome: str
    seconds: float
    predicted: float
    step: float
    reason: str


@dataclass(frozen=True)
class Pacing:
    """The result of the benchmark.

    turns: every agent in every round, in order
    ratio: longest over shortest of the agents' median seconds in the last steady rounds
    submodels: in use then
    slowed_after: last round before the slow-down
    moved: first round with a smaller submodel; 0: never
    released_after: last round of the slow-down
    returned: first round with a larger submodel again; 0: never
    longest: seconds of the longest round
    busy: fraction of the processors that other processes used
    """

    turns: tuple[AgentRound, ...]
    ratio: float
    submodels: tuple[str, ...]
    slowed_after: int
    moved: int
    released_after: int
    returned: int
    longest: float
    busy: float


def compare_agents(turns: Sequence[AgentRound], rounds: Sequence[int]) -> float:
    """Return the longest over the shortest of the agents' median seconds in these rounds.
    FleetError: an agent trained in none of them.
    """
    medians = []
    for agent in CPUS:
        found = [
            turn.seconds
            for turn in turns
            if turn.agent == agent and turn.round in rounds and turn.outcome == "folded"
        ]
        if not found:
            raise FleetError(f"{agent} trained in none of the rounds {rounds[0]} to {rounds[-1]}")
        medians.append(statistics.median(found))
    return max(medians) / min(medians)


def measure(folder: Path, say: Say, parts: RoundCounts = RoundCounts()) -> Pacing:
    """Run the benchmark, for about four minutes. FleetError: a process hangs."""
    busy = psutil.cpu_percent(1.0) / 100
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "auto", folder / "broker"))
        coordinator = stack.enter_context(
            process("coordinator", coordinator_command(broker.address, parts.total, folder), folder)
        )
        agents = {}
        for index, name in enumerate(CPUS):
            agents[name] = stack.enter_context(
                process(name, agent_command(name, index, broker.address, folder), folder)
            )
            if CPUS[name] == 1:
                # let it calibrate before the others start
                wait_for_words(agents[name], "joined run")
        for agent in agents.values():
            wait_for_words(agent, "joined run")
        printed = follow(coordinator, folder, parts.steady, 0, say)
        with slow_down(agents[SLOWED], FACTOR):
            say(f"{SLOWED} is slowed down {FACTOR:g} times")
            printed = follow(coordinator, folder, parts.steady + parts.slow, printed, say)
        say(f"{SLOWED} runs at full speed")
        follow(coordinator, folder, parts.total, printed, say)
        coordinator.popen.wait(SILENCE)
        return summarise(read_turns(folder), parts, busy)


def summarise(turns: Sequence[AgentRound], parts: RoundCounts, busy: float) -> Pacing:
    """Return the result of a run's turns."""
    before, end = parts.steady, parts.steady + parts.slow
    sizes = {turn.round: read_width(turn.submodel) for turn in turns if turn.agent == SLOWED}
    moved = next((n for n in sorted(sizes) if before < n <= end and sizes[n] < sizes[before]), 0)
    returned = next((n for n in sorted(sizes) if n > end and sizes[n] > sizes[end]), 0)
    used = tuple(turn.submodel for turn in turns if turn.round == before)
    longest = max(turn.seconds for turn in turns)
    return Pacing(
        tuple(turns),
        compare_agents(turns, range(before - LAST + 1, before + 1)),
        used,
        before,
        moved,
        end,
        returned,
        longest,
        busy,
    )


def read_width(submodel: str) -> float:
    return float(submodel.split("-")[0].removeprefix("w"))


# ---- processes -------------------------------------------------------------------------------


def coordinator_command(broker: str, rounds: int, folder: Path) -> list[str]:
    return python_command(
        "coordinator.cli",
        "start",
        *("--broker", broker, "--runs", str(folder), "--name", RUN, "--data", "digits"),
        *("--min-agents", str(len(CPUS)), "--rounds", str(rounds), "--format", "json"),
        *(part for setting in SETTINGS for part in ("--set", setting)),
    )


def agent_command(name: str, index: int, broker: str, folder: Path) -> list[str]:
    join = [
        *("join", "--broker", broker, "--run", RUN, "--name", name, "--wait", "120"),
        *("--data", "digits", "--shard", f"{index}/{len(CPUS)}", "--partition", "iid"),
        *("--spool", str(folder / "spool" / name), "--format", "json"),
    ]
    if CPUS[name] == 1:
        return [sys.executable, "-c", ON_ONE_PROCESSOR, *join]
    return python_command("edge_agent.cli", *join, "--limit-cpus", str(CPUS[name]))


@contextmanager
def slow_down(agent: Running, factor: float) -> Iterator[None]:
    """Stop and continue an agent's training process, so that it runs for one part in `factor` of
    the time.
    """
    (worker,) = [
        p
        for p in psutil.Process(agent.popen.pid).children()
        if "edge_agent.join.training_process" in " ".join(p.cmdline())
    ]
    stop = threading.Event()

    def throttle() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                while not stop.wait(CYCLE / factor):
                    worker.suspend()
                    stop.wait(CYCLE * (1 - 1 / factor))
                    worker.resume()
            finally:
                worker.resume()

    thread = threading.Thread(target=throttle, daemon=True, name="slow")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def follow(coordinator: Running, folder: Path, rounds: int, printed: int, say: Say) -> int:
    """Wait until this many rounds are done, and print each. Return the number printed. FleetError:
    no round ends for long.
    """
    progressed = time.monotonic()
    while printed < rounds:
        turns = [turn for turn in read_turns(folder) if turn.round == printed + 1]
        if turns:
            printed, progressed = printed + 1, time.monotonic()
            seconds = [turn.seconds for turn in turns if turn.seconds]
            spread = f"{max(seconds) / min(seconds):.2f}" if len(seconds) == len(turns) else "-"
            say(f"round {printed:2}  " + "  ".join(map(describe, turns)) + f"  ratio {spread}")
        elif coordinator.popen.poll() is not None or time.monotonic() - progressed > SILENCE:
            raise FleetError(
                f"no round {printed + 1} after {time.monotonic() - progressed:.0f} s; the end "
                f"of the coordinator's log:\n{coordinator.tail()}"
            )
        time.sleep(0.2)
    return printed


def describe(turn: AgentRound) -> str:
    return f"{turn.agent} {turn.submodel.split('-')[0]:7}{turn.seconds:5.1f} s" + (
        "" if turn.outcome == "folded" else f" {turn.outcome}"
    )


def read_turns(folder: Path) -> list[AgentRound]:
    """Return every agent in every finished round from the run's store; empty without rounds."""
    try:
        store = Store.open(folder, RUN, read_only=True)
    except StoreError:
        return []
    with closing(store):
        decided = {
            (number, name): decision
            for name in CPUS
            for number, decision in store.agents.read_decisions(name)
        }
        return [
            AgentRound(
                number,
                e.agent,
                e.submodel,
                e.outcome,
                e.seconds,
                decided[number, e.agent].seconds,
                e.step,
                decided[number, e.agent].reason,
            )
            for number, *_ in store.read_history()
            for e in store.read_entries(number)
        ]


def format_conclusion(made: Pacing) -> list[str]:
    """Return the conclusion for the terminal."""
    moved = f"moved to a smaller one in round {made.moved}" if made.moved else "never moved"
    returned = (
        f"to a larger one again in round {made.returned}" if made.returned else "never moved back"
    )
    return [
        f"submodels of {', '.join(f'{cpus:g}' for cpus in CPUS.values())} cpus: "
        f"{', '.join(made.submodels)}",
        "seconds of a round, longest over shortest agent, medians of rounds "
        f"{made.slowed_after - LAST + 1} to {made.slowed_after}: {made.ratio:.2f}",
        f"{SLOWED}, slowed down {FACTOR:g} times after round {made.slowed_after}: {moved}; "
        f"at full speed after round {made.released_after}: {returned}",
        f"the longest round took {made.longest:.1f} s",
        *(
            [
                f"other processes used {made.busy:.0%} of the processors before the start: "
                "measure again on an idle machine"
            ]
            if made.busy > 0.1
            else []
        ),
    ]


@click.command("pacing")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run and the logs in this folder",
)
@FORMAT
def command(keep: Path | None, form: str) -> None:
    """Train on four agents of unequal speed.

    The agents have 1, 0.4, 0.2 and 0.1 processors. Print their submodels, their times per round,
    and what changes after one of them slows down.
    """
    with (
        report_errors("python -m benchmarks pacing", "coordinator"),
        ExitStack() as stack,
    ):
        folder = (
            make_folder(keep)
            if keep
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-pacing-")))
        )
        say = speaker(form)
        made = measure(folder, say)
        say("\n".join(format_conclusion(made)))
        print_result(asdict(made), form)
