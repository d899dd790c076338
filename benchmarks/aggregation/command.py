"""`python -m benchmarks aggregation`: time how fast updates of a ResNet-18 are added up and
averaged, compared with other projects and with only reading the bytes once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.aggregation.updates import NETWORK, map_updates, write_updates
from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all
from benchmarks.interleaved_timing import time_interleaved
from benchmarks.peers.interleaved_processes import hold
from coordinator.fleet.submodel_shipment import to_torch
from coordinator.phases.training import BATCH
from federated.engine import fused_addition
from federated.engine.aggregate import Total, fold
from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.methods.common.trimmed_norm import central_norm
from federated.runtime.console import Say
from federated.task import Update
from models.cost import cost
from models.slicing import Plan, as_slices
from models.submodel import Submodel
from models.submodel_building import full, initial

__all__ = ["command", "count_tensors", "ours", "ours_fast", "read_bytes"]

ROOT = Path(__file__).parents[2]
OURS, FAST, BYTES, COUNTS = (
    f"{__name__}:{name}" for name in ("ours", "ours_fast", "read_bytes", "count_tensors")
)
PEERS = ("fedml", "flwr", "nvflare", "pfl")
FEW = {**dict.fromkeys(PEERS, 1.4), "reading": 0.6}
MANY = {**dict.fromkeys(PEERS, 1.7), "flwr": 3.0, "reading": 0.7}
GOALS = {10: FEW, 50: MANY, 100: MANY}  # least ratio to our time, by number of updates
THREADS = 2
COUNTING, FEDFA, PARTITION, SPEEDUP = 2.5, 1 / 2.5, 1 / 1.2, 1.4
MOST_MODELS = 1.1  # growth of memory while updates are added one by one


def measure_fedavg(count: int, peers: Sequence[str]) -> list[Row]:
    """Time FedAvg with one thread, with the extra `fast`, which adds updates together, and without
    it: updates of this network are then added one by one, as those that arrive one by one are.
    """
    with write_updates("fedavg", count) as folder:
        times = hold(list_tasks(peers, {"method": "fedavg", "folder": folder}))
    name = f"fedavg, {count}"
    return [
        *compare_times(f"{name} together, with numba (ms)", times, (FAST, 1), GOALS[count]),
        *compare_times(f"{name} one by one (ms)", times, (OURS, 1), dict.fromkeys(peers, 1.0)),
    ]


def measure_threads(count: int, peers: Sequence[str]) -> list[Row]:
    """Time the same with several threads, and compare it with our one thread."""
    with write_updates("fedavg", count) as folder:
        task = {"method": "fedavg", "folder": folder}
        one = {(entry, 1): (entry, task) for entry in (FAST, OURS)}
        times = hold(one | list_tasks(peers, {**task, "threads": THREADS}))
    rows = list[Row]()
    for entry, how in ((FAST, "together, with numba"), (OURS, "one by one")):
        name, several = f"fedavg, {count} {how}, {THREADS} threads (ms)", (entry, THREADS)
        alone = Baseline("our one thread", times[entry, 1])
        rows += compare_times(name, times, several, {})
        rows.append(compare(name, times[several], SPEEDUP, peer=alone))
    return rows


def list_tasks(
    peers: Sequence[str], task: Mapping[str, Any]
) -> dict[tuple[str, int], tuple[str, Mapping[str, Any]]]:
    """Return the tasks of ours, of the peers, and of reading the bytes, by entry and number of
    threads.
    """
    entries = [OURS, FAST, *map(name_entry, peers), BYTES]
    return {(entry, task.get("threads", 1)): (entry, task) for entry in entries}


def name_entry(peer: str) -> str:
    return f"benchmarks.aggregation.{peer}:aggregation"


def compare_times(
    name: str,
    times: Mapping[tuple[str, int], float],
    ours: tuple[str, int],
    goals: Mapping[str, float],
) -> list[Row]:
    """Return the rows of one of our tasks, compared with those of as many threads."""
    _, threads = ours
    peers = {
        entry.partition(":")[0].rpartition(".")[2]: milliseconds
        for (entry, used), milliseconds in times.items()
        if used == threads and entry not in {OURS, FAST, BYTES}
    }
    return compare_all(name, times[ours], peers, Baseline("reading", times[BYTES, threads]), goals)


def measure_streaming(count: int) -> Row:
    """Measure by how much memory grows while updates are added one by one."""
    with write_updates("fedavg", count) as folder:
        command = [sys.executable, "-m", "benchmarks.aggregation.streaming_memory", folder]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)  # noqa: S603
    grown = int(done.stdout) / (4 * cost(full(NETWORK)).parameters)
    limit = Baseline(AT_MOST, MOST_MODELS)
    return compare(
        f"fedavg, {count} one by one, growth of memory (models)", grown, 1.0, limit=limit
    )


def measure_percentile() -> Row:
    """Time the norm up to the 95th percentile of a tensor beside numpy's partition at that rank,
    both with one thread.
    """
    values = np.random.default_rng(0).standard_normal(512 * 512 * 9, np.float32)
    given, rank = torch.from_numpy(values), int(0.95 * (values.size - 1))
    tasks: dict[str, Callable[[], object]] = {
        "ours": lambda: central_norm(given, "l2"),
        "np.partition": lambda: np.partition(np.abs(values), rank),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = time_interleaved(tasks)
    finally:
        torch.set_num_threads(threads)
    peer = Baseline("np.partition", times["np.partition"])
    return compare("norm up to the percentile (ms)", times["ours"], PARTITION, peer=peer)


def measure_methods() -> list[Row]:
    """Time ten updates of HeteroFL's five sizes beside tensors of counts, and of FedFA beside
    FedAvg.
    """
    times = dict[str, dict[str, float]]()
    for name in ("fedavg", "heterofl", "fedfa"):
        with write_updates(name, 10) as folder:
            task = {"method": name, "folder": folder}
            entries = [OURS, COUNTS] if name == "heterofl" else [OURS]
            times[name] = hold({entry: (entry, task) for entry in entries})
    counted = Baseline("count tensors", times["heterofl"][COUNTS])
    plain = Baseline("our fedavg", times["fedavg"][OURS])
    return [
        compare("heterofl, 10 (ms)", times["heterofl"][OURS], COUNTING, peer=counted),
        compare("fedfa, 10 (ms)", times["fedfa"][OURS], FEDFA, limit=plain),
    ]


# ---- contestants ---------------------------------------------------------------------------------


def begin(task: Mapping[str, Any]) -> tuple[State, list[Update], Callable[[Submodel], Plan]]:
    """Return the state, the updates and the plan of each submodel, as a round has them."""
    chosen = find_method(task["method"])
    settings = configure(chosen, {})
    state = chosen.start(initial(NETWORK, 0), chosen.menu(NETWORK, settings), settings)
    place = lru_cache(lambda submodel: chosen.place(state, submodel))
    return state, [to_torch(update) for update in map_updates(task["folder"])], place


def ours(task: Mapping[str, Any]) -> Callable[[], object]:
    """Fold and finish as the coordinator does without the extra `fast`: one by one, since several
    updates of this network would take too much memory.
    """
    fused_addition.LEAST = sys.maxsize
    return fold_updates(task, 1)


def ours_fast(task: Mapping[str, Any]) -> Callable[[], object]:
    """Fold and finish as the coordinator does with the extra `fast`."""
    return fold_updates(task, BATCH)


def fold_updates(task: Mapping[str, Any], most: int) -> Callable[[], object]:
    """most: number of updates to add together."""
    state, updates, place = begin(task)
    chosen = find_method(task["method"])

    def run() -> object:
        total = Total(most=most)
        for one in updates:
            fold(total, chosen.parts(state, place(one.submodel), one), (one.agent,))
        return chosen.finish(state, total, np.random.default_rng(0))

    return run


def read_bytes(task: Mapping[str, Any]) -> Callable[[], object]:
    """Read all values of the updates once."""
    _, updates, _ = begin(task)
    buffers = [next(iter(update.tensors.values()))._base for update in updates]
    return lambda: [float(one.sum()) for one in buffers if one is not None]


def count_tensors(task: Mapping[str, Any]) -> Callable[[], object]:
    """Add slices, and count the devices of each entry, as the authors of HeteroFL do."""
    state, updates, place = begin(task)

    def run() -> object:
        sums = {home: torch.zeros_like(value) for home, value in state.tensors.items()}
        counts = {home: torch.zeros_like(value) for home, value in state.tensors.items()}
        for one in updates:
            for row in place(one.submodel).rows:
                where = as_slices(row.there)
                sums[row.home][where] += one.tensors[row.local]
                counts[row.home][where] += 1
        return {
            home: torch.where(counts[home] > 0, value / counts[home].clamp(min=1), value)
            for home, value in sums.items()
        }

    return run


@benchmark("aggregation", "coordinator", PEERS)
def command(peers: tuple[str, ...], say: Say) -> list[Row]:
    """Compare the speed of aggregation with other projects.

    Aggregate updates of a ResNet-18 with one and with two threads, and print the elapsed time, and
    the growth of memory. The first run installs the other projects into the user's cache.
    """
    rows = [row for count in GOALS for row in measure_fedavg(count, peers)]
    rows += [row for count in GOALS for row in measure_threads(count, peers)]
    rows.append(measure_streaming(max(GOALS)))
    return [*rows, *measure_methods(), measure_percentile()]
