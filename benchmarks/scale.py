"""`python -m benchmarks scale`: connect a thousand agents to one coordinator and one broker for
twenty rounds, then five thousand for a few, and measure the time, memory and processor time of each
round.

The agents are raw clients in this process, each with its own socket; coordinator and broker are
real processes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Row
from benchmarks.final_model_recomputation import ReplayResult, read_durations, replay
from benchmarks.output_path_checks import make_folder
from benchmarks.raw_agents.connection_limits import make_room
from benchmarks.raw_agents.fleet_rows import FEW, HUNDRED, Course, Turn, compare_hundred, make_rows
from benchmarks.raw_agents.fold_times import READER, read_fold_times
from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import Running, process, python_command
from coordinator.store.run_store import Store
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = [
    "UPDATE_BYTES",
    "Size",
    "check_updates",
    "command",
    "make_flags",
    "measure",
    "run_fleet",
    "to_toml",
]

RUN = "scale"
DEADLINE = 280.0  # seconds of a round, at least, and for a thousand agents
PATIENCE = 20.0  # further seconds without a round until the benchmark fails
SAMPLE = 0.1  # seconds between samples of the coordinator's memory
FEW_ROUNDS = 3  # of the small run for comparison
HUNDRED_ROUNDS = 6  # of the run whose time per agent is compared
LARGEST, LARGEST_ROUNDS = 5000, 5  # agents and rounds of the largest run, which is compared with it
WORKER = "coordinator.update_workers.worker_process"  # in the command line of a worker
MODEL = "preresnet-10"  # 20 MB; each agent holds an eighth of its width, 0.3 MB
WHOLE = "w1-d1.1.1.1"  # its largest submodel
# bytes of an update, by whether agents hold the whole model
UPDATE_BYTES = {False: 300_000, True: 20_000_000}
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
    "observe.readers": [READER],
}


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

    def count_workers(self) -> float:
        """Return the processor time of the processes that receive updates."""
        found = self.coordinator.children(recursive=True)
        workers = [one for one in found if WORKER in " ".join(one.cmdline())]
        return sum(sum(one.cpu_times()[:2]) for one in workers)

    def sample(self) -> None:
        """Sample the coordinator's memory."""
        self.most = max(self.most, self.coordinator.memory_info().rss)

    def take(self) -> Sample:
        """Return the highest memory since the last call, and the processor time of all
        processes.
        """
        most, self.most = self.most, 0
        own, broker = (sum(one.cpu_times()[:2]) for one in (self.coordinator, self.broker))
        return Sample(most, own, broker, self.count_workers())


class Sample(NamedTuple):
    """What was used until the end of a round.

    rss: peak memory of the coordinator during the round, bytes
    coordinator, broker, workers: seconds of processor time since the start
    """

    rss: int = 0
    coordinator: float = 0.0
    broker: float = 0.0
    workers: float = 0.0


@dataclass(frozen=True)
class Size:
    """What a run consists of. The defaults are those of the options.

    agents, rounds, workers: numbers of agents, of rounds, and of processes that receive updates
    kind: of the broker
    whole: whether agents hold the whole model instead of an eighth of its width
    """

    agents: int = 1000
    rounds: int = 20
    workers: int = 0
    kind: str = "mosquitto"
    whole: bool = False

    @property
    def deadline(self) -> float:
        """Seconds after which a round closes."""
        return DEADLINE * max(1.0, self.agents / 1000)

    @property
    def settings(self) -> dict[str, object]:
        limits = {"fleet.wait": self.deadline, "fleet.deadline": self.deadline}
        return SETTINGS | limits | ({"assign.submodels": {"*": WHOLE}} if self.whole else {})


def measure(folder: Path, size: Size, largest: int, say: Say) -> list[Row]:
    """Run the benchmark, with small runs for comparison.

    largest: number of agents of a further run of few rounds; without one, at most those of `size`.

    ConfigError: this machine allows too few connections. FleetError: a process fails, or a model
        does not consist of exactly the requested updates.
    """
    make_room(max(size.agents, largest), say)
    few = run_fleet(folder / "few", replace(size, agents=FEW, rounds=FEW_ROUNDS), say)
    hundred: Course | None = None
    if max(size.agents, largest) > HUNDRED:
        of_hundred = replace(size, agents=HUNDRED, rounds=HUNDRED_ROUNDS)
        hundred = run_fleet(folder / "hundred", of_hundred, say)
    sizes = [size]
    if largest > size.agents:
        sizes.append(replace(size, agents=largest, rounds=LARGEST_ROUNDS))
    rows = list[Row]()
    for one in sizes:
        rows += measure_size(folder / str(one.agents), one, few, hundred, say)
    return rows


def measure_size(
    folder: Path, size: Size, few: Course, hundred: Course | None, say: Say
) -> list[Row]:
    """Run one fleet, and compare it with those of few and of a hundred agents. Raises FleetError if
    a process fails or an update is lost.
    """
    agents, requested = size.agents, size.agents * size.rounds
    many = run_fleet(folder, size, say)
    check_updates(replay(folder, RUN, 1), requested)
    say(f"no update of {requested} is lost or counted twice; the model equals a replay's")
    model = max(path.stat().st_size for path in (folder / RUN).glob("round-*.safetensors"))
    rows = make_rows(few, many, agents, model, limited=not size.whole)
    if hundred and agents > HUNDRED:
        rows.append(compare_hundred(hundred, many, agents))
    return rows


def check_updates(found: ReplayResult, requested: int) -> None:
    """Raise FleetError unless every requested update is in the model, once."""
    lost = requested - sum(len(set(who)) for who in found.folded.values())
    if lost or found.doubled or found.foreign or not found.equal:
        raise FleetError(
            f"of {requested} updates {lost} are lost, {found.doubled} counted twice and "
            f"{found.foreign} not asked for; the model "
            f"{'equals' if found.equal else 'differs from'} that of a replay"
        )


def run_fleet(folder: Path, size: Size, say: Say) -> Course:
    """Run one fleet. Raises FleetError if it fails or hangs."""
    folder.mkdir(parents=True)
    agents, rounds = size.agents, size.rounds
    names = [f"a{i:04d}" for i in range(agents)]
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, size.kind, folder / "broker"))
        run = (
            f"--name {RUN} --data digits --min-agents {agents} --rounds {rounds} --model {MODEL} "
            f"--workers {size.workers}"
        )
        what = ["start", "--broker", broker.address, "--runs", str(folder), *run.split()]
        what += make_flags(size.settings)
        coordinator = stack.enter_context(
            process(
                "coordinator", python_command("coordinator.cli", *what, "--format", "json"), folder
            )
        )
        host, port = broker.address.rsplit(":", 1)
        fleet = RawFleet(RUN, names, (host, int(port)), Raw(patience=max(5.0, agents / 50)))
        stack.callback(fleet.close)
        usage = Usage(psutil.Process(coordinator.popen.pid), find_broker_process(broker))
        joined, connected, before = wait_for_task(fleet, coordinator, usage, size)
        say(f"{connected} agents after {joined:.1f} s; the coordinator holds {before / 1e6:.0f} MB")
        peaks = measure_rounds(fleet, coordinator, usage, folder, size, say)
    return Course(read_turns(folder, rounds, peaks), joined, connected, before)


def find_broker_process(broker: brokers.Broker) -> psutil.Process:
    """Return the broker's own process, which is a child of a guarding shell."""
    return max(
        psutil.Process(broker.pid).children(recursive=True),
        key=lambda child: child.memory_info().rss,
    )


def wait_for_task(
    fleet: RawFleet, coordinator: Running, usage: Usage, size: Size
) -> tuple[float, int, int]:
    """Run agents until the first task arrives. Return the seconds until then, the number of
    connected agents, and the bytes of the coordinator just before.
    """
    start, base, sampled = time.monotonic(), 0, 0.0
    while not any(agent.task for agent in fleet.agents):
        fleet.turn(0.05)
        if time.monotonic() - sampled > SAMPLE:
            sampled, base = time.monotonic(), usage.coordinator.memory_info().rss
        if coordinator.popen.poll() is not None or time.monotonic() - start > size.deadline:
            raise FleetError(
                f"no round after {time.monotonic() - start:.0f} s; the end of the "
                f"coordinator's log:\n{coordinator.tail()}"
            )
    return time.monotonic() - start, fleet.connected, base


def measure_rounds(
    fleet: RawFleet, coordinator: Running, usage: Usage, folder: Path, size: Size, say: Say
) -> list[Sample]:
    """Run agents until the coordinator ends. Return what was used until the end of each round."""
    peaks, progressed, sampled = list[Sample](), time.monotonic(), 0.0
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
                    f"round {len(done):3} of {size.rounds}: {done[-1]:6.2f} s, "
                    f"{peaks[-1].rss / 1e6:.0f} MB"
                )
        except psutil.NoSuchProcess:
            break
        if time.monotonic() - progressed > size.deadline + PATIENCE:
            raise FleetError(
                f"no round for {size.deadline + PATIENCE:.0f} s; the end of the coordinator's "
                f"log:\n{coordinator.tail()}"
            )
    if coordinator.popen.wait() != 0:
        raise FleetError(f"the coordinator failed; the end of its log:\n{coordinator.tail()}")
    return peaks


def read_turns(folder: Path, rounds: int, peaks: list[Sample]) -> tuple[Turn, ...]:
    """Return the measurements of every round. Rounds after the last sample get that sample, since
    the coordinator may end before the last round is sampled.
    """
    with closing(Store.open(folder, RUN, read_only=True)) as store:
        usage = [*peaks, *[peaks[-1]] * (rounds - len(peaks))]
        before, folds = [Sample(), *usage], read_fold_times(folder / RUN)
        return tuple(
            Turn(
                number,
                sum(e.outcome == "folded" for e in store.read_entries(number)),
                round(seconds, 2),
                now.rss,
                round(now.coordinator - then.coordinator, 2),
                round(now.broker - then.broker, 2),
                # a worker that was killed takes its time with it
                round(max(0.0, now.workers - then.workers), 2),
                fold,
            )
            for (number, seconds, *_), now, then, fold in zip(
                store.read_history(), usage, before, folds, strict=False
            )
        )


@benchmark("scale", "coordinator")
@click.option(
    "--agents",
    type=click.IntRange(min=2),
    default=Size.agents,
    show_default=True,
    metavar="N",
    help="number of agents",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=Size.rounds,
    show_default=True,
    metavar="N",
    help="number of rounds",
)
@click.option(
    "--largest",
    type=click.IntRange(min=0),
    default=LARGEST,
    show_default=True,
    metavar="N",
    help=f"number of agents of a further run of {LARGEST_ROUNDS} rounds; with 0, or no more than "
    "--agents, there is none",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=Size.workers,
    show_default=True,
    metavar="N",
    help="processes that receive updates beside the coordinator's own",
)
@click.option(
    "--whole",
    is_flag=True,
    default=Size.whole,
    help="agents hold the whole model, of 20 MB, not 0.3 MB",
)
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["mosquitto", "embedded"]),
    default=Size.kind,
    show_default=True,
    help="broker to start",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run and the logs in this folder",
)
def command(keep: Path | None, largest: int, say: Say, **options: Any) -> list[Row]:
    """Connect many agents to one coordinator.

    Check that no update is lost, and print the times of a round and the memory, compared with those
    of few agents. Each agent needs an open file and a port of this machine: the limits are printed
    first.
    """
    size = Size(**options)
    if keep:
        return measure(make_folder(keep), size, largest, say)
    with tempfile.TemporaryDirectory(prefix="espalier-scale-") as folder:
        return measure(Path(folder), size, largest, say)
