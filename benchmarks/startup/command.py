"""`python -m benchmarks startup`: measure the processor time and the memory of commands that do
little, and of an agent until it has joined, compared with the commands of other projects and with
only importing packages that every command needs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all
from benchmarks.interleaved_timing import RUNS
from benchmarks.peers.environments import set_up
from benchmarks.peers.process_usage import read_processor_seconds, read_shared_memory
from benchmarks.startup import measured_command
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import (
    Running,
    process,
    process_environment,
    python_command,
)
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = ["Usage", "command", "make_rows", "measure_command"]

RUN = "startup"
PEERS = ("flwr", "nvflare")
IMPORTS, TORCH = "import click, msgspec", "import torch"
JOIN, REST = "edge-agent join", "coordinator at rest"
JOINED, LONGEST = "joined run", 600.0  # what an agent prints, and seconds until then
MOST_COMMAND, MOST_JOIN = 250.0, 5000.0  # milliseconds of processor time
MOST_REST = 250.0  # MB


@dataclass(frozen=True)
class Usage:
    """What a process used.

    seconds: of processor time.
    size: bytes of memory: the peak of a command, or of an agent once it has joined.
    """

    seconds: float
    size: int


def list_commands(runs: Path, peers: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands to measure, by name. runs: folder of the run."""
    ours = {
        "coordinator --help": python_command("coordinator.cli", "--help"),
        "coordinator status": python_command("coordinator.cli", "status", "--runs", str(runs)),
        "coordinator enroll": python_command(
            *("coordinator.cli", "enroll", "a", "--host", "127.0.0.1", "--pki", str(runs / "pki")),
        ),
        "edge-agent --help": python_command("edge_agent.cli", "--help"),
    }
    limits = {code: [sys.executable, "-c", code] for code in (IMPORTS, TORCH)}
    theirs = {f"{peer} --help": [str(set_up(peer).with_name(peer)), "--help"] for peer in peers}
    return ours | theirs | limits


def measure(folder: Path, peers: Sequence[str], turns: int) -> dict[str, Usage]:
    """Return the median use of each command, and of agents that join a run that waits for more."""
    found: dict[str, list[Usage]] = {}
    runs = folder / "runs"
    commands = list_commands(runs, peers)
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "auto", folder / "broker"))
        start = (
            *("start", "--broker", broker.address, "--runs", str(runs), "--name", RUN),
            *("--data", "digits", "--min-agents", "99"),
        )
        run = stack.enter_context(
            process("coordinator", python_command("coordinator.cli", *start), folder)
        )
        for turn in range(turns + 1):
            once = {
                JOIN: measure_join(f"a{turn}", broker.address, folder),
                REST: Usage(0.0, psutil.Process(run.popen.pid).memory_info().rss),
                **{name: measure_command(words) for name, words in commands.items()},
            }
            if turn:  # the first is a warm-up
                for name, usage in once.items():
                    found.setdefault(name, []).append(usage)
    return {
        name: Usage(
            statistics.median(one.seconds for one in them),
            int(statistics.median(one.size for one in them)),
        )
        for name, them in found.items()
    }


def measure_command(words: Sequence[str]) -> Usage:
    """Run a command to its end. Raises FleetError if it fails."""
    own = [sys.executable, "-I", "-S", measured_command.__file__]
    done = subprocess.run(  # noqa: S603
        [*own, *words], capture_output=True, text=True, check=False, env=process_environment()
    )
    found = json.loads(done.stdout) if done.returncode == 0 else {"code": done.returncode}
    if found["code"] != 0:
        raise FleetError(
            f"'{' '.join(words)}' failed with exit code {found['code']}:\n{done.stderr[-2000:]}"
        )
    return Usage(found["seconds"], found["bytes"])


def measure_join(name: str, broker: str, folder: Path) -> Usage:
    """Start an agent, and stop it once it has joined. Raises FleetError if it does not join."""
    where = ("--broker", broker, "--run", RUN, "--spool", str(folder / "spool"), "--wait", "60")
    what = ("--name", name, "--data", "digits", "--shard", "0/4", "--fresh")
    with process(name, python_command("edge_agent.cli", "join", *where, *what), folder) as agent:
        wait_until_joined(agent)
        return Usage(read_processor_seconds(agent.popen.pid), read_shared_memory(agent.popen.pid))


def wait_until_joined(agent: Running) -> None:
    until = time.monotonic() + LONGEST
    while JOINED not in agent.read():
        if agent.popen.poll() is not None or time.monotonic() > until:
            raise FleetError(f"{agent.name} did not join; the end of its log:\n{agent.tail()}")
        time.sleep(0.02)


def make_rows(found: Mapping[str, Usage], peers: Sequence[str]) -> list[Row]:
    """Return the comparisons of what was measured."""
    helps = [f"{peer} --help" for peer in peers]
    goals = dict.fromkeys(helps, 1.0)
    times, sizes = list[Row](), list[Row]()
    for name, usage in found.items():
        if not name.startswith(("coordinator ", "edge-agent ")):
            continue
        baselines = {baseline: found[baseline] for baseline in helps if name.endswith("--help")}
        floor = TORCH if name in (JOIN, REST) else IMPORTS
        processor, memory = f"{name}, processor time (ms)", f"{name}, memory (MB)"
        if name == REST:
            most = Baseline(AT_MOST, MOST_REST)
            sizes.append(compare(memory, usage.size / 1e6, 1.0, limit=most))
        else:
            most = Baseline(AT_MOST, MOST_JOIN if name == JOIN else MOST_COMMAND)
            used, least = 1000 * usage.seconds, Baseline(floor, 1000 * found[floor].seconds)
            peer_times = {baseline: 1000 * one.seconds for baseline, one in baselines.items()}
            times.append(compare(processor, used, 1.0, limit=most))
            times += compare_all(processor, used, peer_times, least, goals)
        least = Baseline(floor, found[floor].size / 1e6)
        peer_sizes = {baseline: one.size / 1e6 for baseline, one in baselines.items()}
        sizes += compare_all(memory, usage.size / 1e6, peer_sizes, least, goals)
    return times + sizes


@benchmark("startup", "coordinator", PEERS)
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    metavar="N",
    help="number of measured runs of each command, after a first run that is not measured",
)
def command(peers: tuple[str, ...], turns: int, say: Say) -> list[Row]:
    """Measure how long commands take to start.

    Print the processor time and the memory of commands, and of agents until they have joined a run.
    The first run installs the other projects into the user's cache.
    """
    with tempfile.TemporaryDirectory(prefix="espalier-startup-") as folder:
        return make_rows(measure(Path(folder), peers, turns), peers)
