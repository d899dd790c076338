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
from dataclasses import fields, replace
from pathlib import Path

import click

from benchmarks.interleaved_timing import Row, compare, print_rows
from benchmarks.peers.environments import choose_peers, list_versions, set_up
from benchmarks.simulation.meter import Measured
from federated.errors import ConfigError, FleetError
from federated.runtime.console import FORMAT, Say, report_errors, speaker

__all__ = ["command", "make_rows", "run_once"]

ROOT = Path(__file__).parents[2]
ONE, SEVERAL, LOOP = "one process", "processes", "plain loop"
ENTRIES = {
    ONE: "benchmarks.simulation.ours:in_one_process",
    SEVERAL: "benchmarks.simulation.ours:in_processes",
    LOOP: "benchmarks.simulation.plain_loop:simulate",
    "pfl": "benchmarks.simulation.pfl:simulate",
    "ray": "benchmarks.simulation.ray:simulate",
}
PEERS = ("pfl", "ray")
QUIET = {  # one thread for arithmetic in each process, and no reports to the makers of a peer
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0"),
}
TURNS = 5
MOST_FIRST, MOST_SIZE = 1000.0, 500.0  # milliseconds, MB
PER_CORE = {LOOP: 0.85, "pfl": 1.2, "ray": 1.0}  # least ratios of a baseline's time to ours
BOTH_CORES = 15.0
MOST_APART = 1.0  # percentage points of accuracy
LEAST_ERROR = 1e-3  # so that it divides


def measure(peers: Sequence[str], rounds: int, turns: int, say: Say) -> dict[str, Measured]:
    """Return the medians of each contestant's runs, taken in turns."""
    pythons = dict.fromkeys((ONE, SEVERAL, LOOP), Path(sys.executable))
    for peer in peers:
        try:
            pythons[peer] = set_up(peer)
        except ConfigError as error:
            say(f"not compared with {peer}: {error}")
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
    baselines = {name: one for name, one in found.items() if name not in (ONE, SEVERAL)}
    rows = [
        compare(f"client, {way}", 1000 * found[way].client, name, 1000 * one.client, PER_CORE[name])
        for way in (ONE, SEVERAL)
        for name, one in baselines.items()
    ]
    for name, one in baselines.items():
        goal = BOTH_CORES if name == "ray" else None
        rows.append(
            compare(f"round, {SEVERAL}", 1000 * found[SEVERAL].round, name, 1000 * one.round, goal)
        )
    for way in (ONE, SEVERAL):
        name, first = f"first round, {way}", 1000 * found[way].first
        rows.append(compare(name, first, "most", MOST_FIRST, 1.0))
        rows += [compare(name, first, n, 1000 * one.first, None) for n, one in baselines.items()]
    for way in (ONE, SEVERAL):
        name, size = f"memory, {way}", found[way].size / 1e6
        rows.append(compare(name, size, "most", MOST_SIZE, 1.0, "MB"))
        rows += [compare(name, size, n, one.size / 1e6, None, "MB") for n, one in baselines.items()]
    for way in (ONE, SEVERAL):
        error = 100 * max(LEAST_ERROR, 1 - found[way].accuracy)
        for name, one in baselines.items():
            row = compare(f"error, {way}", error, name, 100 * (1 - one.accuracy), None, "%")
            rows.append(replace(row, met=abs(row.theirs - row.ours) <= MOST_APART))
    return rows


@click.command("simulation")
@choose_peers(PEERS)
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
@FORMAT
def command(peers: tuple[str, ...], rounds: int, turns: int, form: str) -> None:
    """Compare the speed of simulation with other projects.

    Print the processor time per client, the time per round, the time of the first round, the memory
    and the error of the final network. The first run installs the other projects into the user's
    cache.
    """
    with report_errors("python -m benchmarks simulation", "simulate", "interrupted"):
        found = measure(peers, rounds, turns, speaker(form))
        print_rows(make_rows(found), form, list_versions(peer for peer in peers if peer in found))
