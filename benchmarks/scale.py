"""`python -m benchmarks scale`: a thousand connected agents, through twenty rounds, with one
coordinator and one broker.

The agents are raw clients in this process, each with a socket of its own; coordinator and broker
are real processes.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from benchmarks.raw.agent import Raw
from benchmarks.raw.fleet import RawFleet
from benchmarks.replay import replay
from coordinator.broker import local as brokers
from coordinator.simulate.demo_fleet import Running, module, process
from coordinator.store.store import Store
from federated.errors import ConfigError, FleetError, StoreError
from federated.runtime.console import FORMAT, Say, speaker, speaking_plainly

__all__ = [
    "Course",
    "Scale",
    "Turn",
    "command",
    "course",
    "flat",
    "measure",
    "settings_of",
    "spelled",
]

RUN = "scale"
SILENCE = 300.0  # seconds without a round after which it is given up
SAMPLE = 0.1  # seconds between looks at the coordinator's memory
FEW, FEW_ROUNDS = 2, 3  # agents and rounds of the run to compare with
SPARE = 64  # descriptors beside the agents' sockets
MODEL = "preresnet-10"  # 20 MB, of which each agent holds an eighth of the width: 0.3 MB
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
    """One round. folded: updates in the model; seconds: as the run's record says; rss: most bytes
    that the coordinator held meanwhile.

    coordinator, broker: seconds of processor time that each took.
    """

    round: int
    folded: int
    seconds: float
    rss: int
    coordinator: float
    broker: float


@dataclass(frozen=True)
class Scale:
    """lost: updates that were asked for and not folded; doubled, foreign, equal: as
    `benchmarks.replay` finds. model: bytes of the weights.

    before: bytes that the coordinator held when all had joined and no round had begun; base: the
    most that one with few agents held in any round, peak: this one. flat: whether peak is within
    base and three models. joined: seconds until all were there. connected: agents then.
    """

    agents: int
    rounds: int
    turns: tuple[Turn, ...]
    connected: int
    joined: float
    lost: int
    doubled: int
    foreign: int
    equal: bool
    model: int
    before: int
    base: int
    peak: int
    flat: bool
    seconds: float


def flat(base: int, peaks: list[int], model: int) -> bool:
    """Whether no round takes the coordinator beyond what it held before, and three models."""
    return max(peaks) <= base + 3 * model


def settings_of(extra: dict[str, object]) -> list[str]:
    """The flags that set a run's configuration."""
    return [
        part
        for key, value in {**SETTINGS, **extra}.items()
        for part in ("--set", f"{key}={spelled(value)}")
    ]


def spelled(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {spelled(one)}" for key, one in value.items())
            + "}"
        )
    return json.dumps(value)


@dataclass
class Usage:
    """What processes take: the most memory since it was last asked, and processor time."""

    coordinator: psutil.Process
    broker: psutil.Process
    most: int = 0

    def look(self) -> None:
        self.most = max(self.most, self.coordinator.memory_info().rss)

    def taken(self) -> tuple[int, float, float]:
        most, self.most = self.most, 0
        return most, *(sum(process.cpu_times()[:2]) for process in (self.coordinator, self.broker))


@dataclass(frozen=True)
class Course:
    """How a run went. joined: seconds until all were there; connected: agents then; before: bytes
    that the coordinator held then.
    """

    turns: tuple[Turn, ...]
    joined: float
    connected: int
    before: int


def measure(folder: Path, agents: int, rounds: int, say: Say, kind: str = "mosquitto") -> Scale:
    """Run it, after one with few agents to compare with. Raises ConfigError where this machine does
    not allow so many sockets, FleetError.
    """
    allow(agents + SPARE)
    start = time.monotonic()
    few = course(folder / "few", FEW, FEW_ROUNDS, say, kind)
    many = course(folder / "many", agents, rounds, say, kind)
    found = replay(folder / "many", RUN, 1)
    model = max(path.stat().st_size for path in (folder / "many" / RUN).glob("round-*.safetensors"))
    base, peaks = max(turn.rss for turn in few.turns), [turn.rss for turn in many.turns]
    return Scale(
        agents,
        rounds,
        many.turns,
        many.connected,
        round(many.joined, 2),
        agents * rounds - sum(len(set(who)) for who in found.folded.values()),
        found.doubled,
        found.foreign,
        found.equal,
        model,
        many.before,
        base,
        max(peaks),
        flat(base, peaks, model),
        round(time.monotonic() - start, 1),
    )


def course(folder: Path, agents: int, rounds: int, say: Say, kind: str = "mosquitto") -> Course:
    """One run. Raises FleetError where it fails or falls silent."""
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
        what = ["start", "--broker", broker.address, "--runs", str(folder), *run, *settings_of({})]
        coordinator = stack.enter_context(
            process("coordinator", module("coordinator.cli", *what, "--format", "json"), folder)
        )
        host, port = broker.address.rsplit(":", 1)
        fleet = RawFleet(RUN, names, (host, int(port)), Raw())
        stack.callback(fleet.close)
        usage = Usage(psutil.Process(coordinator.popen.pid), program(broker))
        joined, connected, before = join(fleet, coordinator, usage)
        say(f"{connected} agents after {joined:.1f} s; the coordinator holds {before / 1e6:.0f} MB")
        peaks = follow(fleet, coordinator, usage, folder, rounds, say)
    return Course(finished(folder, rounds, peaks), joined, connected, before)


def allow(files: int) -> None:
    """Lets this process open so many files. Raises ConfigError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise ConfigError(
            f"this machine lets a process open {hard} files, {files} are needed: raise "
            "it (ulimit -Hn), or ask for fewer --agents"
        )
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (max(soft, min(hard, files)) if hard != resource.RLIM_INFINITY else files, hard),
    )


def program(broker: brokers.Broker) -> psutil.Process:
    """The broker's own process, below the shell that guards it."""
    return max(
        psutil.Process(broker.pid).children(recursive=True),
        key=lambda child: child.memory_info().rss,
    )


def join(fleet: RawFleet, coordinator: Running, usage: Usage) -> tuple[float, int, int]:
    """Turns until the first task comes: seconds, agents that are connected, and what the
    coordinator held just before.
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


def follow(
    fleet: RawFleet, coordinator: Running, usage: Usage, folder: Path, rounds: int, say: Say
) -> list[tuple[int, float, float]]:
    """What each round took of the coordinator and of the broker: bytes, and seconds of processors
    since the start.
    """
    peaks, heard, sampled = list[tuple[int, float, float]](), time.monotonic(), 0.0
    while coordinator.popen.poll() is None:
        fleet.turn(0.05)
        if time.monotonic() - sampled < SAMPLE:
            continue
        sampled = time.monotonic()
        try:
            usage.look()
            if len(done := history(folder)) > len(peaks):
                heard = time.monotonic()
                peaks += [usage.taken()] * (len(done) - len(peaks))
                say(
                    f"round {len(done):3} of {rounds}: {done[-1]:6.2f} s, "
                    f"{peaks[-1][0] / 1e6:.0f} MB"
                )
        except psutil.NoSuchProcess:
            break
        if time.monotonic() - heard > SILENCE:
            raise FleetError(
                f"no round for {SILENCE:.0f} s; the end of the coordinator's "
                f"log:\n{coordinator.tail()}"
            )
    if coordinator.popen.wait() != 0:
        raise FleetError(f"the coordinator failed; the end of its log:\n{coordinator.tail()}")
    return peaks


def history(folder: Path) -> list[float]:
    """Seconds of each finished round."""
    try:
        store = Store.open(folder, RUN, read_only=True)
    except StoreError:
        return []
    try:
        return [seconds for _, seconds, *_ in store.history()]
    finally:
        store.close()


def finished(folder: Path, rounds: int, peaks: list[tuple[int, float, float]]) -> tuple[Turn, ...]:
    """Every round as its record has it, beside what it took; of the last, the coordinator may have
    ended before anybody looked.
    """
    store = Store.open(folder, RUN, read_only=True)
    try:
        told = [*peaks, *[peaks[-1]] * (rounds - len(peaks))]
        before = [(0, 0.0, 0.0), *told]
        return tuple(
            Turn(
                number,
                sum(e.outcome == "folded" for e in store.entries(number)),
                round(seconds, 2),
                rss,
                round(own - was, 2),
                round(his - had, 2),
            )
            for (number, seconds, *_), (rss, own, his), (_, was, had) in zip(
                store.history(), told, before, strict=False
            )
        )
    finally:
        store.close()


def lines(made: Scale) -> list[str]:
    """What a person reads at the end."""
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
@click.option("--agents", type=click.IntRange(min=2), default=1000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["mosquitto", "embedded"]),
    default="mosquitto",
    show_default=True,
)
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="keep the run and the logs here"
)
@FORMAT
def command(agents: int, rounds: int, kind: str, keep: Path | None, form: str) -> None:
    """Many connected agents with one coordinator: what is lost, what a round takes, and whether
    memory grows.
    """
    with (
        speaking_plainly("python -m benchmarks scale", "coordinator", "interrupted"),
        ExitStack() as stack,
    ):
        folder = keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-scale-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        say = speaker(form)
        made = measure(folder, agents, rounds, say, kind)
        for line in lines(made):
            say(line)
        if form == "json":
            click.echo(json.dumps({**asdict(made), "processors": len(os.sched_getaffinity(0))}))
        if made.lost or made.doubled or made.foreign or not made.equal:
            sys.exit(1)
