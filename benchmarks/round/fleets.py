"""Start the fleets whose rounds are compared, and let them take turns: ours, bare MQTT clients, and
those of Flower. They all send back the bytes that they get.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.peers.environments import set_up
from benchmarks.peers.process_usage import read_processor_seconds
from benchmarks.round.turns import FOLDER, Turns
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from coordinator.simulate.demo_fleet import Running, process, python_command, wait_for_words
from federated.errors import FleetError
from models.cost import cost
from models.named_network import network
from models.submodel_building import full

__all__ = [
    "Course",
    "RoundFleet",
    "measure_model",
    "start_bare_clients",
    "start_flower",
    "start_flower_deployment",
    "start_ours",
    "take_turns",
]

K = TypeVar("K")

ROOT = Path(__file__).parents[2]
RUN, MODEL = "round", "preresnet-18"
SILENCE = 900.0  # seconds after which a fleet counts as failed
SAMPLE = 0.05  # seconds between samples of a process
LISTENING = "listening"
SETTINGS = (
    "method.name=fedavg",
    f"model.name={MODEL}",
    "train.steps=1",
    "evaluate.every=1000",
    "evaluate.between=false",
    "evaluate.devices=false",
    "evaluate.calibrate=coordinator",
    "evaluate.examples=8",
    'observe.readers=["benchmarks.round.turn_reader:wait_for_turns"]',
)


@dataclass(frozen=True)
class Course:
    """What rounds needed.

    seconds: median of a round.
    processor: seconds of processor time of a round, of all processes and the broker.
    base: bytes of the first process before the others started.
    peak: its most bytes.
    """

    seconds: float
    processor: float
    base: int
    peak: int


@dataclass
class RoundFleet:
    """A fleet whose rounds are measured.

    first: the process that leads the rounds.
    others: ids of its other processes.
    turns: when it runs a round.
    base: bytes of the first process before the others started.
    peak: its most bytes during its rounds.
    marks: seconds of processor time before each round.
    seconds: duration of each round.
    """

    first: Running
    others: Sequence[int]
    turns: Turns
    base: int
    peak: int = 0
    marks: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run_round(self) -> None:
        """Run the next round, and wait for its end. Raises FleetError if it fails."""
        self.mark()
        number, until = len(self.marks), time.monotonic() + SILENCE
        self.turns.start(number)
        while (seconds := self.turns.read(number)) is None:
            if self.first.popen.poll() is not None or time.monotonic() > until:
                raise FleetError(
                    f"{self.first.name} failed in round {number}; the end of its log:\n"
                    f"{self.first.tail()}"
                )
            self.peak = max(self.peak, psutil.Process(self.first.popen.pid).memory_info().rss)
            time.sleep(SAMPLE)
        self.seconds.append(seconds)

    def mark(self) -> None:
        """Note the processor time of all processes."""
        self.marks.append(sum(map(read_processor_seconds, (self.first.popen.pid, *self.others))))

    def conclude(self) -> Course:
        """Return what the rounds needed, without the first one, a warm-up."""
        self.mark()
        used = [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]
        seconds, processor = (statistics.median(each[1:]) for each in (self.seconds, used))
        return Course(seconds, processor, self.base, self.peak)


def take_turns(fleets: Mapping[K, RoundFleet], rounds: int) -> dict[K, Course]:
    """Run one round of each fleet after the other, again and again. Return what they needed."""
    for _ in range(rounds):
        for fleet in fleets.values():
            fleet.run_round()
    return {key: fleet.conclude() for key, fleet in fleets.items()}


def measure_model() -> int:
    """Return the bytes of the weights."""
    return 4 * cost(full(network(MODEL, (1, 8, 8), 10))).parameters


# ---- fleets --------------------------------------------------------------------------------------


@contextmanager
def start_ours(
    folder: Path, broker: brokers.Broker, agents: int, rounds: int
) -> Iterator[RoundFleet]:
    """Start a coordinator and agents that send the weights back."""
    what = ("--name", RUN, "--data", "digits", "--min-agents", agents, "--rounds", rounds + 1)
    settings = (part for one in SETTINGS for part in ("--set", one))
    where = ("--broker", broker.address, "--runs", folder)
    start = map(str, ("start", *where, *what, *settings, "--format", "json"))
    first = python_command("coordinator.cli", *start)
    joins = [
        (
            *("join", "--broker", broker.address, "--run", RUN, "--name", f"a{index}"),
            *("--trainer", "benchmarks.round.echo_trainer:open_echo", "--data", "digits"),
            *("--shard", f"{index}/{agents}", "--spool", str(folder / "spool")),
        )
        for index in range(agents)
    ]
    others = [python_command("edge_agent.cli", *join) for join in joins]
    with start_fleet(folder, "waiting: 0 of", first, others, broker) as fleet:
        yield fleet


@contextmanager
def start_bare_clients(
    folder: Path, broker: brokers.Broker, agents: int, rounds: int
) -> Iterator[RoundFleet]:
    """Start clients that move the same bytes."""
    numbers = map(str, (rounds + 1, agents, measure_model()))
    what = (broker.address, str(folder / FOLDER), *numbers)
    first = [sys.executable, "-m", "benchmarks.round.bare_mqtt_client", *what]
    others = [[*first, f"b{index}"] for index in range(agents)]
    with start_fleet(folder, LISTENING, first, others, broker) as fleet:
        yield fleet


@contextmanager
def start_flower(folder: Path, agents: int, rounds: int) -> Iterator[RoundFleet]:
    """Start Flower's legacy server and clients."""
    address = f"127.0.0.1:{find_free_port('127.0.0.1', 0)}"
    what = (address, str(folder / FOLDER), str(rounds + 1), str(agents), MODEL)
    first = [str(set_up("flwr")), "-m", "benchmarks.round.flwr", *what]
    others = [[*first, f"f{index}"] for index in range(agents)]
    with start_fleet(folder, LISTENING, first, others) as fleet:
        yield fleet


@contextmanager
def start_flower_deployment(folder: Path, agents: int, rounds: int) -> Iterator[RoundFleet]:
    """Start Flower's SuperLink and SuperNodes."""
    python, port = set_up("flwr"), find_free_port("127.0.0.1", 0)
    numbers = map(str, (rounds + 1, agents, measure_model() // 4))
    what = (str(port), str(folder / FOLDER), *numbers)
    # it starts programs by name
    node = ["env", f"PATH={python.parent}{os.pathsep}{os.environ['PATH']}", f"PYTHONPATH={ROOT}"]
    node += ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
    node += ["--host", "127.0.0.1", "--port"]
    first = [str(python), "-m", "benchmarks.round.flwr_deployment", *what]
    others = [[*node, str(find_free_port("127.0.0.1", 0))] for _ in range(agents)]
    with start_fleet(folder, LISTENING, first, others) as fleet:
        yield fleet


@contextmanager
def start_fleet(
    folder: Path,
    words: str,
    first: Sequence[str],
    others: Sequence[Sequence[str]],
    broker: brokers.Broker | None = None,
) -> Iterator[RoundFleet]:
    """Start a process, and the others once it has printed these words."""
    (folder / FOLDER).mkdir(parents=True)
    with ExitStack() as stack:
        leader = stack.enter_context(process(folder.name, first, folder))
        wait_for_words(leader, words)
        base = psutil.Process(leader.popen.pid).memory_info().rss
        them = [
            stack.enter_context(process(f"{folder.name}-{index}", other, folder))
            for index, other in enumerate(others)
        ]
        turns = Turns(folder / FOLDER)
        stack.callback(turns.stop)
        pids = [one.popen.pid for one in them] + ([broker.pid] if broker else [])
        yield RoundFleet(leader, pids, turns, base)
