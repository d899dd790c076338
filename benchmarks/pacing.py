"""`python -m benchmarks pacing`: four agents under enforced limits, their submodels, and how long
each takes in every round; one is slowed meanwhile.

The first is held to one processor by affinity, the others to parts of one by control groups (where
those may not be written, by stopping and continuing). Real processes over a real broker. The slowed
agent's training process is stopped for two thirds of the time, from outside: neither its limits nor
its profile show it, only what its rounds take.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import psutil

from coordinator.broker import local as brokers
from coordinator.simulate.demo_fleet import Running, module, process, wait_for_words
from coordinator.store.store import Store
from federated.errors import FleetError, StoreError
from federated.runtime.console import FORMAT, Say, speaker, speaking_plainly

__all__ = ["Pacing", "Parts", "Turn", "command", "judged", "pacing", "ratio"]

CPUS = {"a0": 1.0, "a1": 0.4, "a2": 0.2, "a3": 0.1}
SLOWED, FACTOR = "a1", 3.0
# fine enough that neighbours take about as long
WIDTHS = [round(float(width), 3) for width in np.geomspace(0.12, 1.0, 30)]
LAST = 3  # rounds of the steady part that count
RUN = "pacing"
ON_ONE_PROCESSOR = (
    "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from edge_agent.cli.main "
    "import main; main()"
)
CYCLE = 0.15  # seconds of stopping and continuing
SILENCE = 240.0  # seconds without a round after which it is given up
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
class Parts:
    """How many rounds are steady, how many with one agent slowed, and how many after it was let
    go.
    """

    steady: int = 8
    slow: int = 5
    after: int = 6

    @property
    def total(self) -> int:
        return self.steady + self.slow + self.after


@dataclass(frozen=True)
class Turn:
    """One agent in one round. seconds: from task to acceptance; predicted: the same, before; step:
    mean of a step. reason: why this submodel.
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
    """turns: in order. ratio: of the agents' median seconds in the last steady rounds, the longest
    over the shortest. submodels: in use then.

    slowed_after, moved, released_after, returned: rounds: the last before it was slowed, the first
    with a smaller submodel, the last before it was let go, the first with a larger one again; 0:
    never. longest: seconds of the longest round. busy: share of the processors taken by others.
    """

    turns: tuple[Turn, ...]
    ratio: float
    submodels: tuple[str, ...]
    slowed_after: int
    moved: int
    released_after: int
    returned: int
    longest: float
    busy: float


def ratio(turns: Sequence[Turn], rounds: Sequence[int]) -> float:
    """The longest over the shortest of the agents' median seconds in these rounds. Raises
    FleetError where one trained in none of them.
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


def pacing(folder: Path, say: Say, parts: Parts = Parts()) -> Pacing:
    """Runs it; about four minutes. Raises FleetError when a part of it falls silent."""
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
                # undisturbed by the others, which have room for themselves
                wait_for_words(agents[name], "joined run")
        for agent in agents.values():
            wait_for_words(agent, "joined run")
        told = follow(coordinator, folder, parts.steady, 0, say)
        with slowed(agents[SLOWED], FACTOR):
            say(f"{SLOWED} is slowed {FACTOR:g} times")
            told = follow(coordinator, folder, parts.steady + parts.slow, told, say)
        say(f"{SLOWED} is let go")
        follow(coordinator, folder, parts.total, told, say)
        coordinator.popen.wait(SILENCE)
        return judged(turns_of(folder), parts, busy)


def judged(turns: Sequence[Turn], parts: Parts, busy: float) -> Pacing:
    """What the turns of a run say."""
    before, end = parts.steady, parts.steady + parts.slow
    sizes = {turn.round: width(turn.submodel) for turn in turns if turn.agent == SLOWED}
    moved = next((n for n in sorted(sizes) if before < n <= end and sizes[n] < sizes[before]), 0)
    returned = next((n for n in sorted(sizes) if n > end and sizes[n] > sizes[end]), 0)
    used = tuple(turn.submodel for turn in turns if turn.round == before)
    longest = max(turn.seconds for turn in turns)
    return Pacing(
        tuple(turns),
        ratio(turns, range(before - LAST + 1, before + 1)),
        used,
        before,
        moved,
        end,
        returned,
        longest,
        busy,
    )


def width(submodel: str) -> float:
    return float(submodel.split("-")[0].removeprefix("w"))


# ---- the processes -------------------------------------------------------------------------------


def coordinator_command(broker: str, rounds: int, folder: Path) -> list[str]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run = [
        "--name",
        RUN,
        "--data",
        "digits",
        "--min-agents",
        str(len(CPUS)),
        "--rounds",
        str(rounds),
    ]
    return module(
        "coordinator.cli",
        "start",
        "--broker",
        broker,
        "--runs",
        str(folder),
        *run,
        *settings,
        "--format",
        "json",
    )


def agent_command(name: str, index: int, broker: str, folder: Path) -> list[str]:
    shard = ["--data", "digits", "--shard", f"{index}/{len(CPUS)}", "--partition", "iid"]
    where = [
        "--broker",
        broker,
        "--run",
        RUN,
        "--name",
        name,
        "--spool",
        str(folder / "spool" / name),
        "--wait",
        "120",
    ]
    join = ["join", *where, *shard, "--format", "json"]
    if CPUS[name] == 1:
        return [sys.executable, "-c", ON_ONE_PROCESSOR, *join]
    return module("edge_agent.cli", *join, "--limit-cpus", str(CPUS[name]))


@contextmanager
def slowed(agent: Running, factor: float) -> Iterator[None]:
    """Stops and continues the agent's training process, so that it works for one part in `factor`
    of the time.
    """
    (worker,) = [
        p
        for p in psutil.Process(agent.popen.pid).children()
        if "edge_agent.join.training_process" in " ".join(p.cmdline())
    ]
    stop = threading.Event()

    def govern() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                while not stop.wait(CYCLE / factor):
                    worker.suspend()
                    stop.wait(CYCLE * (1 - 1 / factor))
                    worker.resume()
            finally:
                worker.resume()

    thread = threading.Thread(target=govern, daemon=True, name="slow")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def follow(coordinator: Running, folder: Path, rounds: int, told: int, say: Say) -> int:
    """Waits until so many rounds are done, and says what each was; how many were told. Raises
    FleetError when no round ends for long.
    """
    heard = time.monotonic()
    while told < rounds:
        turns = [turn for turn in turns_of(folder) if turn.round == told + 1]
        if turns:
            told, heard = told + 1, time.monotonic()
            seconds = [turn.seconds for turn in turns if turn.seconds]
            spread = f"{max(seconds) / min(seconds):.2f}" if len(seconds) == len(turns) else "-"
            say(f"round {told:2}  " + "  ".join(map(spelled, turns)) + f"  ratio {spread}")
        elif coordinator.popen.poll() is not None or time.monotonic() - heard > SILENCE:
            raise FleetError(
                f"no round {told + 1} after {time.monotonic() - heard:.0f} s; the end "
                f"of the coordinator's log:\n{coordinator.tail()}"
            )
        time.sleep(0.2)
    return told


def spelled(turn: Turn) -> str:
    return f"{turn.agent} {turn.submodel.split('-')[0]:7}{turn.seconds:5.1f} s" + (
        "" if turn.outcome == "folded" else f" {turn.outcome}"
    )


def turns_of(folder: Path) -> list[Turn]:
    """Every agent in every finished round, as the run's store has it; empty while there is none."""
    try:
        store = Store.open(folder, RUN, read_only=True)
    except StoreError:
        return []
    try:
        decided = {
            (number, name): decision
            for name in CPUS
            for number, decision in store.agents.read_decisions(name)
        }
        return [
            Turn(
                number,
                e.agent,
                e.submodel,
                e.outcome,
                e.seconds,
                decided[number, e.agent].seconds,
                e.step,
                decided[number, e.agent].reason,
            )
            for number, *_ in store.history()
            for e in store.entries(number)
        ]
    finally:
        store.close()


def lines(made: Pacing) -> list[str]:
    """What a person reads at the end."""
    moved = f"moved to a smaller one in round {made.moved}" if made.moved else "never moved"
    returned = (
        f"to a larger one again in round {made.returned}" if made.returned else "never moved back"
    )
    return [
        f"submodels of {', '.join(f'{cpus:g}' for cpus in CPUS.values())} cpus: "
        f"{', '.join(made.submodels)}",
        "seconds of a round, longest over shortest agent, medians of rounds "
        f"{made.slowed_after - LAST + 1} to {made.slowed_after}: {made.ratio:.2f}",
        f"{SLOWED}, slowed {FACTOR:g} times after round {made.slowed_after}: {moved}; "
        f"let go after round {made.released_after}: {returned}",
        f"the longest round took {made.longest:.1f} s",
        *(
            [
                f"others used {made.busy:.0%} of the processors before it began: "
                "measure again on an idle machine"
            ]
            if made.busy > 0.1
            else []
        ),
    ]


@click.command("pacing")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="keep the run and the logs here"
)
@FORMAT
def command(keep: Path | None, form: str) -> None:
    """Four agents of .8, .4, .2 and .1 processors: which submodels they get, whether their rounds
    end together, and what a slow-down does.
    """
    with (
        speaking_plainly("python -m benchmarks pacing", "coordinator", "interrupted"),
        ExitStack() as stack,
    ):
        folder = keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-pacing-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        say = speaker(form)
        made = pacing(folder, say)
        for line in lines(made):
            say(line)
        if form == "json":
            click.echo(json.dumps(asdict(made)))
