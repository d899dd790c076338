"""`python -m benchmarks scale`: connect a thousand agents to one coordinator and one broker for
twenty rounds, and measure the time, memory and processor time of each round.

The agents are raw clients in this process, each with its own socket; coordinator and broker are
real processes.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from benchmarks.final_model_recomputation import read_durations, replay
from benchmarks.output_path_checks import make_folder
from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import Running, process, python_command
from coordinator.store.run_store import Store
from federated.errors import ConfigError, FleetError
from federated.runtime.console import FORMAT, Say, print_result, report_errors, speaker

__all__ = [
    "command",
    "is_flat",
    "make_flags",
    "measure",
    "raise_file_limit",
    "run_fleet",
    "to_toml",
]

RUN = "scale"
SILENCE = 300.0  # seconds without a round until the benchmark fails
SAMPLE = 0.1  # seconds between samples of the coordinator's memory
FEW, FEW_ROUNDS = 2, 3  # agents and rounds of the small run for comparison
SPARE = 64  # descriptors in addition to the agents' sockets
MODEL = "preresnet-10"  # 20 MB; each agent holds an eighth of its width, 0.3 MB
SETTINGS = {
    "method.name": "fedavg",
    "method.widths": [0.125, 1.0],
    "method.depths": [1],
    "assign.submodels": {"*": "w0.125-d1.1.1.1"},
    "train.steps": 1,
    "evaluate.every": 1000,
    "evaluate.between": False,
    "evaluate.devices": False,
    "evaluate.calibrate": "coordinator",
    "evaluate.examples": 8,
    "fleet.wait": 300,
    "fleet.deadline": 280,
}


@dataclass(frozen=True)
class Turn:
    """Measurements of one round.

    round: number of the round
    folded: number of updates in the model
    seconds: duration, from the run's record
    rss: peak memory of the coordinator in bytes
    coordinator, broker: seconds of processor time of each
    """

    round: int
    folded: int
    seconds: float
    rss: int
    coordinator: float
    broker: float


@dataclass(frozen=True)
class Course:
    """Measurements of one run.

    turns: measurements of each round
    joined: seconds until the first task
    connected: number of agents that were connected at the first task
    before: bytes of the coordinator just before the first task
    """

    turns: tuple[Turn, ...]
    joined: float
    connected: int
    before: int


@dataclass(frozen=True)
class Scale(Course):
    """Result of the benchmark.

    agents, rounds: numbers of agents and rounds
    lost: number of requested updates that were not folded
    doubled, foreign, equal: see `benchmarks.final_model_recomputation.ReplayResult`
    model: bytes of the weights
    base: peak bytes of a coordinator with few agents
    peak: peak bytes of the coordinator with all agents
    flat: True if `peak` is at most `base` plus three times `model`
    seconds: duration of the benchmark
    """

    agents: int
    rounds: int
    lost: int
    doubled: int
    foreign: int
    equal: bool
    model: int
    base: int
    peak: int
    flat: bool
    seconds: float


def is_flat(base: int, peaks: list[int], model: int) -> bool:
    """Return True if no round needs more memory than `base` plus three times `model`."""
    return max(peaks) <= base + 3 * model


def make_flags(settings: Mapping[str, object]) -> list[str]:
    """Return the command-line flags for these settings."""
    return [
        part for key, value in settings.items() for part in ("--set", f"{key}={to_toml(value)}")
    ]


def to_toml(value: object) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {to_toml(one)}" for key, one in value.items())
            + "}"
        )
    return json.dumps(value)


@dataclass
class Usage:
    """Highest memory since the last call of `take`, and processor time."""

    coordinator: psutil.Process
    broker: psutil.Process
    most: int = 0

    def sample(self) -> None:
        """Sample the coordinator's memory."""
        self.most = max(self.most, self.coordinator.memory_info().rss)

    def take(self) -> tuple[int, float, float]:
        """Return the highest memory since the last call, and the processor time of both
        processes.
        """
        most, self.most = self.most, 0
        return most, *(sum(process.cpu_times()[:2]) for process in (self.coordinator, self.broker))


def measure(folder: Path, agents: int, rounds: int, say: Say, kind: str = "mosquitto") -> Scale:
    """Run the benchmark, after a small run for comparison. Raises ConfigError if this machine does
    not allow enough sockets, FleetError if a process fails.
    """
    raise_file_limit(agents + SPARE)
    start = time.monotonic()
    few = run_fleet(folder / "few", FEW, FEW_ROUNDS, say, kind)
    many = run_fleet(folder / "many", agents, rounds, say, kind)
    found = replay(folder / "many", RUN, 1)
    model = max(path.stat().st_size for path in (folder / "many" / RUN).glob("round-*.safetensors"))
    base, peaks = max(turn.rss for turn in few.turns), [turn.rss for turn in many.turns]
    return Scale(
        many.turns,
        round(many.joined, 2),
        many.connected,
        many.before,
        agents,
        rounds,
        agents * rounds - sum(len(set(who)) for who in found.folded.values()),
        found.doubled,
        found.foreign,
        found.equal,
        model,
        base,
        max(peaks),
        is_flat(base, peaks, model),
        round(time.monotonic() - start, 1),
    )


def run_fleet(folder: Path, agents: int, rounds: int, say: Say, kind: str = "mosquitto") -> Course:
    """Run one fleet. Raises FleetError if it fails or hangs."""
    folder.mkdir(parents=True)
    names = [f"a{i:04d}" for i in range(agents)]
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, kind, folder / "broker"))
        run = [
            "--name",
            RUN,
            "--data",
            "digits",
            "--min-agents",
            str(agents),
            "--rounds",
            str(rounds),
            "--model",
            MODEL,
        ]
        what = [
            "start",
            "--broker",
            broker.address,
            "--runs",
            str(folder),
            *run,
            *make_flags(SETTINGS),
        ]
        coordinator = stack.enter_context(
            process(
                "coordinator", python_command("coordinator.cli", *what, "--format", "json"), folder
            )
        )
        host, port = broker.address.rsplit(":", 1)
        fleet = RawFleet(RUN, names, (host, int(port)), Raw())
        stack.callback(fleet.close)
        usage = Usage(psutil.Process(coordinator.popen.pid), find_broker_process(broker))
        joined, connected, before = wait_for_task(fleet, coordinator, usage)
        say(f"{connected} agents after {joined:.1f} s; the coordinator holds {before / 1e6:.0f} MB")
        peaks = measure_rounds(fleet, coordinator, usage, folder, rounds, say)
    return Course(read_turns(folder, rounds, peaks), joined, connected, before)


def raise_file_limit(files: int) -> None:
    """Raise this process's limit of open files. Raises ConfigError if the system does not allow
    it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise ConfigError(
            f"a process may open {hard} files, but {files} are needed: raise the limit "
            "(ulimit -Hn), or use fewer --agents"
        )
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (max(soft, min(hard, files)) if hard != resource.RLIM_INFINITY else files, hard),
    )


def find_broker_process(broker: brokers.Broker) -> psutil.Process:
    """Return the broker's own process, which is a child of a guarding shell."""
    return max(
        psutil.Process(broker.pid).children(recursive=True),
        key=lambda child: child.memory_info().rss,
    )


def wait_for_task(fleet: RawFleet, coordinator: Running, usage: Usage) -> tuple[float, int, int]:
    """Run agents until the first task arrives. Return the seconds until then, the number of
    connected agents, and the bytes of the coordinator just before.
    """
    start, base, sampled = time.monotonic(), 0, 0.0
    while not any(agent.task for agent in fleet.agents):
        fleet.turn(0.05)
        if time.monotonic() - sampled > SAMPLE:
            sampled, base = time.monotonic(), usage.coordinator.memory_info().rss
        if coordinator.popen.poll() is not None or time.monotonic() - start > SILENCE:
            raise FleetError(
                f"no round after {time.monotonic() - start:.0f} s; the end of the "
                f"coordinator's log:\n{coordinator.tail()}"
            )
    return time.monotonic() - start, fleet.connected, base


def measure_rounds(
    fleet: RawFleet, coordinator: Running, usage: Usage, folder: Path, rounds: int, say: Say
) -> list[tuple[int, float, float]]:
    """Run agents until the coordinator ends. Return for each round the peak bytes of the
    coordinator, and the processor seconds of coordinator and broker since the start.
    """
    peaks, progressed, sampled = list[tuple[int, float, float]](), time.monotonic(), 0.0
    while coordinator.popen.poll() is None:
        fleet.turn(0.05)
        if time.monotonic() - sampled < SAMPLE:
            continue
        sampled = time.monotonic()
        try:
            usage.sample()
            if len(done := read_durations(folder, RUN)) > len(peaks):
                progressed = time.monotonic()
                peaks += [usage.take()] * (len(done) - len(peaks))
                say(
                    f"round {len(done):3} of {rounds}: {done[-1]:6.2f} s, "
                    f"{peaks[-1][0] / 1e6:.0f} MB"
                )
        except psutil.NoSuchProcess:
            break
        if time.monotonic() - progressed > SILENCE:
            raise FleetError(
                f"no round for {SILENCE:.0f} s; the end of the coordinator's "
                f"log:\n{coordinator.tail()}"
            )
    if coordinator.popen.wait() != 0:
        raise FleetError(f"the coordinator failed; the end of its log:\n{coordinator.tail()}")
    return peaks


def read_turns(
    folder: Path, rounds: int, peaks: list[tuple[int, float, float]]
) -> tuple[Turn, ...]:
    """Return the measurements of every round. Rounds after the last sample get that sample, since
    the coordinator may end before the last round is sampled.
    """
    with closing(Store.open(folder, RUN, read_only=True)) as store:
        usage = [*peaks, *[peaks[-1]] * (rounds - len(peaks))]
        before = [(0, 0.0, 0.0), *usage]
        return tuple(
            Turn(
                number,
                sum(e.outcome == "folded" for e in store.read_entries(number)),
                round(seconds, 2),
                rss,
                round(own - own_before, 2),
                round(other - other_before, 2),
            )
            for (number, seconds, *_), (rss, own, other), (_, own_before, other_before) in zip(
                store.read_history(), usage, before, strict=False
            )
        )


def format_conclusion(made: Scale) -> list[str]:
    """Return the conclusion for the terminal."""
    seconds = [turn.seconds for turn in made.turns]
    return [
        f"{made.agents} agents, {made.connected} connected after {made.joined:.1f} s; "
        f"{made.rounds} rounds, a model of {made.model / 1e6:.2f} MB",
        f"lost {made.lost}, doubled {made.doubled}, foreign {made.foreign}, the model "
        f"{'equals' if made.equal else 'IS NOT'} that of a replay",
        f"coordinator: {made.before / 1e6:.1f} MB before the first round, at most "
        f"{made.peak / 1e6:.1f} MB in one "
        f"({made.base / 1e6:.1f} MB with {FEW} agents): "
        f"{'flat' if made.flat else 'NOT flat'} "
        f"({(made.peak - made.base) / made.model:.1f} models more)",
        f"a round took {statistics.median(seconds):.2f} s (median), {max(seconds):.2f} "
        "s at most; processor seconds of a round: coordinator "
        f"{statistics.median(t.coordinator for t in made.turns):.2f}, broker "
        f"{statistics.median(t.broker for t in made.turns):.2f}",
    ]


@click.command("scale")
@click.option(
    "--agents",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    metavar="N",
    help="number of agents",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="number of rounds",
)
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["mosquitto", "embedded"]),
    default="mosquitto",
    show_default=True,
    help="broker to start",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run and the logs in this folder",
)
@FORMAT
def command(agents: int, rounds: int, kind: str, keep: Path | None, form: str) -> None:
    """Connect many agents to one coordinator.

    Print the number of lost updates, the times per round, and the memory.
    """
    with (
        report_errors("python -m benchmarks scale", "coordinator", "interrupted"),
        ExitStack() as stack,
    ):
        folder = (
            make_folder(keep)
            if keep
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-scale-")))
        )
        say = speaker(form)
        made = measure(folder, agents, rounds, say, kind)
        say("\n".join(format_conclusion(made)))
        print_result({**asdict(made), "processors": len(os.sched_getaffinity(0))}, form)
        if made.lost or made.doubled or made.foreign or not made.equal:
            sys.exit(1)
