"""`python -m benchmarks simulation`: simulate the same task with this project, with other projects
and with a plain loop, each in processes of its own, and compare time, memory and accuracy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import click

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all, compare_errors
from benchmarks.peers.environments import set_up
from benchmarks.simulation.meter import Measured
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = ["command", "make_rows", "run_once"]

ROOT = Path(__file__).parents[2]
ONE, SEVERAL, LOOP = "one process", "processes", "plain loop"
ENTRIES = {
    ONE: "benchmarks.simulation.ours:in_one_process",
    SEVERAL: "benchmarks.simulation.ours:in_processes",
    LOOP: "benchmarks.simulation.plain_loop:simulate",
    "pfl": "benchmarks.simulation.pfl:simulate",
    "flwr-ray": "benchmarks.simulation.flwr_ray:simulate",
}
PEERS = ("pfl", "flwr-ray")
QUIET = {  # one thread for arithmetic in each process, and no reports to the makers of a peer
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0"),
}
TURNS = 5
MOST_FIRST, MOST_SIZE = 1000.0, 500.0  # milliseconds, MB
PER_CORE = {LOOP: 0.85, "pfl": 1.2, "flwr-ray": 1.0}  # least ratios of a baseline's time to ours
BOTH_CORES = 15.0


def measure(peers: Sequence[str], rounds: int, turns: int, say: Say) -> dict[str, Measured]:
    """Return the medians of each contestant's runs, taken in turns."""
    pythons = dict.fromkeys((ONE, SEVERAL, LOOP), Path(sys.executable))
    pythons |= {peer: set_up(peer) for peer in peers}
    runs: dict[str, list[Measured]] = {name: [] for name in pythons}
    for turn in range(turns):
        for name, python in pythons.items():
            found = run_once(python, ENTRIES[name], rounds)
            runs[name].append(found)
            say(
                f"{turn + 1} of {turns}, {name}: {1000 * found.round:.0f} ms a round, "
                f"accuracy {found.accuracy:.3f}"
            )
    return {
        name: Measured(
            **{
                field.name: statistics.median(getattr(one, field.name) for one in them)
                for field in fields(Measured)
            }
        )
        for name, them in runs.items()
    }


def run_once(python: Path, entry: str, rounds: int) -> Measured:
    """Run a contestant in processes of its own. Raises FleetError if it fails."""
    module, _, function = entry.partition(":")
    done = subprocess.run(  # noqa: S603
        [str(python), "-m", "benchmarks.simulation.worker", module, function, str(rounds)],
        env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FleetError(f"{entry} failed:\n{done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def make_rows(found: Mapping[str, Measured]) -> list[Row]:
    """Return the comparisons of what was measured."""
    ways = (ONE, SEVERAL)
    clients = {name: 1000 * one.client for name, one in found.items()}
    rounds = {name: 1000 * one.round for name, one in found.items()}
    firsts = {name: 1000 * one.first for name, one in found.items()}
    sizes = {name: one.size / 1e6 for name, one in found.items()}
    rows = compare_ways("processor time of a client, {} (ms)", clients, PER_CORE, ways)
    rows += compare_ways("round, {} (ms)", rounds, {"flwr-ray": BOTH_CORES}, (SEVERAL,))
    for name, values, most in (
        ("first round, {} (ms)", firsts, MOST_FIRST),
        ("memory, {} (MB)", sizes, MOST_SIZE),
    ):
        limit = Baseline(AT_MOST, most)
        rows += [compare(name.format(way), values[way], 1.0, limit=limit) for way in ways]
        rows += compare_ways(name, values, {}, ways)
    rows += [
        compare_errors(way, found[way].accuracy, name, one.accuracy)
        for way in ways
        for name, one in found.items()
        if name not in ways
    ]
    return rows


def compare_ways(
    name: str, values: Mapping[str, float], goals: Mapping[str, float], ways: Sequence[str]
) -> list[Row]:
    """Compare our ways with the peers and with the plain loop. name: with a place for the way."""
    peers = {peer: values[peer] for peer in PEERS if peer in values}
    limit = Baseline(LOOP, values[LOOP])
    return [
        row
        for way in ways
        for row in compare_all(name.format(way), values[way], peers, limit, goals)
    ]


@benchmark("simulation", "simulate", PEERS)
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    metavar="N",
    help="number of rounds of each run",
)
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    default=TURNS,
    show_default=True,
    metavar="N",
    help="number of runs of each project",
)
def command(peers: tuple[str, ...], rounds: int, turns: int, say: Say) -> list[Row]:
    """Compare the speed of simulation with other projects.

    Print the processor time per client, the time per round, the time of the first round, the memory
    and the error of the final network. The first run installs the other projects into the user's
    cache.
    """
    return make_rows(measure(peers, rounds, turns, say))
