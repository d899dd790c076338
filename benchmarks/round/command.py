"""`python -m benchmarks round`: time rounds in which agents send back a ResNet-18, in processes of
their own, compared with MQTT clients that only move the same bytes through the same broker.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import psutil

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all
from benchmarks.peers.environments import set_up
from benchmarks.peers.process_usage import read_processor_seconds
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from coordinator.simulate.demo_fleet import Running, process, python_command, wait_for_words
from coordinator.store.run_database_reader import open_records
from federated.errors import FleetError
from federated.runtime.console import Say
from models.cost import cost
from models.named_network import network
from models.submodel_building import full

__all__ = ["ENDED", "Course", "command", "make_rows", "measure_once"]

ROOT = Path(__file__).parents[2]
RUN, MODEL = "round", "preresnet-18"
ROUNDS = 7  # the first is a warm-up, and the last may evaluate
FEW = 4  # rounds of Flower's deployment, which take up to a minute each; the first is a warm-up
COUNTS = (2, 10)
KINDS = ("mosquitto", "embedded")
SILENCE = 900.0  # seconds after which a fleet counts as failed
SAMPLE = 0.05  # seconds between samples of the coordinator's memory
MOST_TIMES, LEAST_TIMES = 1.3, 1.5  # of the floor, and of the time of Flower's gRPC server
DEPLOYMENT, LEAST_DEPLOYMENT = "flwr deployment", 8.0
MOST_BASE, MOST_MODELS = 250.0, 3.0  # MB before the first round, and models more in a round
BARE, LISTENING = "bare clients", "listening"
ENDED = re.compile(r"^round (?:\d+ took|([\d.]+)$)", re.MULTILINE)
SETTINGS = (
    "method.name=fedavg",
    f"model.name={MODEL}",
    "train.steps=1",
    "evaluate.every=1000",
    "evaluate.between=false",
    "evaluate.devices=false",
    "evaluate.calibrate=coordinator",
    "evaluate.examples=8",
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


def measure_once(
    folder: Path, kind: str, agents: int, rounds: int = ROUNDS
) -> tuple[Course, Course]:
    """Measure rounds of a fleet, and of bare clients at the same broker, both before and after the
    fleet. Raises FleetError if a process fails.
    """
    folder.mkdir(parents=True)
    with brokers.start("127.0.0.1", 0, kind, folder / "broker") as broker:
        before = run_bare_clients(folder, broker, agents, rounds)
        fleet = run_fleet(folder, broker, agents, rounds)
        after = run_bare_clients(folder, broker, agents, rounds)
    bare = Course(
        (before.seconds + after.seconds) / 2,
        (before.processor + after.processor) / 2,
        before.base,
        before.peak,
    )
    return fleet, bare


def run_fleet(folder: Path, broker: brokers.Broker, agents: int, rounds: int) -> Course:
    """Run a coordinator and agents that send the weights back."""
    what = ("--name", RUN, "--data", "digits", "--min-agents", agents, "--rounds", rounds)
    settings = (part for one in SETTINGS for part in ("--set", one))
    where = ("--broker", broker.address, "--runs", folder)
    start = map(str, ("start", *where, *what, *settings, "--format", "json"))
    joins = [
        (
            *("join", "--broker", broker.address, "--run", RUN, "--name", f"a{index}"),
            *("--trainer", "benchmarks.round.echo_trainer:open_echo", "--data", "digits"),
            *("--shard", f"{index}/{agents}", "--spool", str(folder / "spool")),
        )
        for index in range(agents)
    ]
    with ExitStack() as stack:
        command = python_command("coordinator.cli", *start)
        coordinator = stack.enter_context(process("coordinator", command, folder))
        wait_for_words(coordinator, "waiting: 0 of")
        base = psutil.Process(coordinator.popen.pid).memory_info().rss
        them = [
            stack.enter_context(process(join[6], python_command("edge_agent.cli", *join), folder))
            for join in joins
        ]
        processor, peak = follow(coordinator, [broker.pid, *(a.popen.pid for a in them)], rounds)
    return Course(statistics.median(read_cycles(folder)[:-1]), processor, base, peak)


def read_cycles(folder: Path) -> list[float]:
    """Return the seconds from the end of each round of the fleet to that of the next, which include
    what the coordinator does between two rounds.
    """
    with closing(open_records(folder, RUN)) as records:
        ends = records.read_ends()
    return [(after - before).total_seconds() for before, after in pairwise(ends)]


def run_bare_clients(folder: Path, broker: brokers.Broker, agents: int, rounds: int) -> Course:
    """Run clients that move the same bytes."""
    what = (broker.address, str(rounds), str(agents), str(measure_model()))
    command = [sys.executable, "-m", "benchmarks.round.bare_mqtt_client", *what]
    others = [[*command, f"b{index}"] for index in range(agents)]
    return run_peer(folder, command, others, rounds, broker)


def run_flower(folder: Path, agents: int, rounds: int) -> Course:
    """Run Flower's own server and clients."""
    folder.mkdir(parents=True)
    address = f"127.0.0.1:{find_free_port('127.0.0.1', 0)}"
    what = (address, str(rounds), str(agents), MODEL)
    command = [str(set_up("flwr")), "-m", "benchmarks.round.flwr", *what]
    others = [[*command, f"f{index}"] for index in range(agents)]
    return run_peer(folder, command, others, rounds)


def time_deployment(folder: Path, agents: int) -> float:
    """Return the median seconds of a round through Flower's current deployment. Raises
    FleetError.
    """
    folder.mkdir(parents=True)
    python, port = set_up("flwr"), find_free_port("127.0.0.1", 0)
    what = (str(port), str(FEW), str(agents), str(measure_model() // 4))
    # it starts programs by name
    node = ["env", f"PATH={python.parent}{os.pathsep}{os.environ['PATH']}", f"PYTHONPATH={ROOT}"]
    node += [
        "flower-supernode",
        "--insecure",
        "--superlink",
        f"127.0.0.1:{port}",
        "--host",
        "127.0.0.1",
        "--port",
    ]
    with ExitStack() as stack:
        command = [str(python), "-m", "benchmarks.round.flwr_deployment", *what]
        first = stack.enter_context(process("superlink", command, folder))
        wait_for_words(first, LISTENING)
        for index in range(agents):
            own = [*node, str(find_free_port("127.0.0.1", 0))]
            stack.enter_context(process(f"supernode-{index}", own, folder))
        until = time.monotonic() + SILENCE
        while first.popen.poll() is None and time.monotonic() < until:
            time.sleep(SAMPLE)
        seconds = [float(text) for text in ENDED.findall(first.read())]
        if first.popen.poll() != 0 or len(seconds) < FEW:
            raise FleetError(f"Flower's deployment failed; the end of its log:\n{first.tail()}")
    return statistics.median(seconds[1:])


def run_peer(
    folder: Path,
    first: Sequence[str],
    others: Sequence[Sequence[str]],
    rounds: int,
    broker: brokers.Broker | None = None,
) -> Course:
    """Run a process that prints the seconds of each round, and others that answer it."""
    with ExitStack() as stack:
        sender = stack.enter_context(process("sender", first, folder))
        wait_for_words(sender, LISTENING)
        base = psutil.Process(sender.popen.pid).memory_info().rss
        them = [stack.enter_context(process(other[-1], other, folder)) for other in others]
        pids = [one.popen.pid for one in them] + ([broker.pid] if broker else [])
        processor, peak = follow(sender, pids, rounds)
        seconds = [float(text) for text in ENDED.findall(sender.read())]
    return Course(statistics.median(seconds[1:-1]), processor, base, peak)


def measure_model() -> int:
    """Return the bytes of the weights."""
    return 4 * cost(full(network(MODEL, (1, 8, 8), 10))).parameters


def follow(first: Running, others: Sequence[int], rounds: int) -> tuple[float, int]:
    """Wait until a process has ended its rounds. Return the processor seconds of a round, of this
    process and others, and its most bytes. Raises FleetError if it fails or takes too long.
    """
    own, peak, marks = psutil.Process(first.popen.pid), 0, list[tuple[int, float]]()
    until = time.monotonic() + SILENCE
    while first.popen.poll() is None and time.monotonic() < until:
        with suppress(psutil.NoSuchProcess):
            peak = max(peak, own.memory_info().rss)
            done = len(ENDED.findall(first.read()))
            if len(marks) < 2 and done >= (1, rounds - 1)[len(marks)]:
                marks.append((done, sum(map(read_processor_seconds, (own.pid, *others)))))
        time.sleep(SAMPLE)
    if first.popen.poll() != 0 or len(marks) < 2:
        raise FleetError(f"{first.name} failed; the end of its log:\n{first.tail()}")
    (early, before), (late, after) = marks
    return (after - before) / (late - early), peak


def make_rows(
    found: Mapping[tuple[str, int], tuple[Course, Course]],
    flower: Mapping[int, Course],
    deployment: Mapping[int, float],
) -> list[Row]:
    """Return the comparisons of what was measured. found: a fleet and bare clients, by broker and
    number of agents. flower, deployment: by number of agents.
    """
    times, sizes = list[Row](), list[Row]()
    goals = {"flwr": LEAST_TIMES, DEPLOYMENT: LEAST_DEPLOYMENT, BARE: 1 / MOST_TIMES}
    for (kind, agents), (own, bare) in found.items():
        name, grown = f"{agents} agents, {kind}", (own.peak - own.base) / measure_model()
        peers = {"flwr": flower[agents]} if agents in flower else {}
        times += compare_all(
            f"round, {name} (ms)",
            1000 * own.seconds,
            {
                **{peer: 1000 * one.seconds for peer, one in peers.items()},
                **({DEPLOYMENT: 1000 * deployment[agents]} if agents in deployment else {}),
            },
            Baseline(BARE, 1000 * bare.seconds),
            goals,
        )
        times += compare_all(
            f"processor time, {name} (ms)",
            1000 * own.processor,
            {peer: 1000 * one.processor for peer, one in peers.items()},
            Baseline(BARE, 1000 * bare.processor),
            {},
        )
        most = Baseline(AT_MOST, MOST_BASE), Baseline(AT_MOST, MOST_MODELS)
        sizes.append(compare(f"base memory, {name} (MB)", own.base / 1e6, 1.0, limit=most[0]))
        sizes.append(compare(f"growth, {name} (models)", grown, 1.0, limit=most[1]))
    return times + sizes


@benchmark("round", "coordinator", ("flwr",))
@click.option(
    "--agents",
    "counts",
    multiple=True,
    type=click.IntRange(min=1),
    default=COUNTS,
    show_default=True,
    metavar="N",
    help="number of agents; may be repeated",
)
@click.option(
    "--broker",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    default=KINDS,
    show_default=True,
    help="broker to start; may be repeated",
)
def command(
    counts: Sequence[int], kinds: Sequence[str], peers: tuple[str, ...], say: Say
) -> list[Row]:
    """Time rounds without training.

    Agents in processes of their own send a ResNet-18 back. Print the time of a round, compared with
    MQTT clients that only move the same bytes, with Flower's gRPC server and clients and with its
    SuperLink and SuperNodes, and the memory of the coordinator.
    """
    with tempfile.TemporaryDirectory(prefix="espalier-round-") as folder:
        flower = {
            agents: run_flower(Path(folder) / f"flower-{agents}", agents, ROUNDS)
            for agents in counts
            if peers
        }
        deployment = {
            agents: time_deployment(Path(folder) / f"deployment-{agents}", agents)
            for agents in counts
            if peers
        }
        found = {}
        for kind in kinds:
            for agents in counts:
                one = measure_once(Path(folder) / f"{kind}-{agents}", kind, agents)
                found[kind, agents] = one
                say(
                    f"{agents} agents, {kind}: {1000 * one[0].seconds:.0f} ms a round, bare "
                    f"clients {1000 * one[1].seconds:.0f} ms"
                )
        return make_rows(found, flower, deployment)
