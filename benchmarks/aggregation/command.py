"""`python -m benchmarks aggregation`: time how fast updates of a ResNet-18 are added up and
averaged, compared with other projects and with only reading the bytes once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from benchmarks.aggregation.updates import NETWORK, map_updates, write_updates
from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Row, compare, compare_all
from benchmarks.peers.interleaved_processes import hold
from coordinator.fleet.submodel_shipment import to_torch
from coordinator.phases.training import BATCH
from federated.engine.aggregate import Total, fold
from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.runtime.console import Say
from federated.task import Update
from models.slicing import Plan, as_slices
from models.submodel import Submodel
from models.submodel_building import initial

__all__ = ["command", "count_tensors", "ours", "read_bytes"]

OURS, BYTES, COUNTS = (f"{__name__}:{name}" for name in ("ours", "read_bytes", "count_tensors"))
GOALS = {  # least ratio of a baseline's time to ours, by number of updates
    10: {"nvflare": 1.4, "flwr": 3.0, "pfl": 1.0, "reading": 0.6},
    50: {"nvflare": 1.7, "flwr": 3.0, "pfl": 1.0, "reading": 0.7},
}
COUNTING, FEDFA = 2.5, 1 / 2.5


def measure_fedavg(count: int, peers: Sequence[str]) -> list[Row]:
    """Time FedAvg of updates that are all in memory, and of updates that arrive one by one."""
    entries = {peer: f"benchmarks.aggregation.{peer}:aggregation" for peer in peers}
    every = [OURS, *entries.values(), BYTES]
    with write_updates("fedavg", count) as folder:
        task = {"method": "fedavg", "folder": folder, "most": BATCH}
        together, single = hold(every, task), hold(every, {**task, "most": 1})
    return [
        row
        for what, times, goals in (
            ("together", together, GOALS[count]),
            ("one by one", single, dict.fromkeys(peers, 1.0)),
        )
        for row in compare_all(
            f"fedavg, {count} {what} (ms)",
            times[OURS],
            {peer: times[entry] for peer, entry in entries.items()},
            Baseline("reading", times[BYTES]),
            goals,
        )
    ]


def measure_methods() -> list[Row]:
    """Time ten updates of HeteroFL's five sizes beside tensors of counts, and of FedFA beside
    FedAvg.
    """
    times = dict[str, dict[str, float]]()
    for name in ("fedavg", "heterofl", "fedfa"):
        with write_updates(name, 10) as folder:
            task = {"method": name, "folder": folder, "most": BATCH}
            times[name] = hold([OURS, COUNTS] if name == "heterofl" else [OURS], task)
    counted = Baseline("count tensors", times["heterofl"][COUNTS])
    plain = Baseline("our fedavg", times["fedavg"][OURS])
    return [
        compare("heterofl, 10 (ms)", times["heterofl"][OURS], COUNTING, peer=counted),
        compare("fedfa, 10 (ms)", times["fedfa"][OURS], FEDFA, limit=plain),
    ]


# ---- contestants ---------------------------------------------------------------------------------


def begin(task: Mapping[str, Any]) -> tuple[State, list[Update], Callable[[Submodel], Plan]]:
    """Return the state, the updates and the plan of each submodel, as a round has them."""
    torch.set_num_threads(1)
    chosen = find_method(task["method"])
    settings = configure(chosen, {})
    state = chosen.start(initial(NETWORK, 0), chosen.menu(NETWORK, settings), settings)
    place = lru_cache(lambda submodel: chosen.place(state, submodel))
    return state, [to_torch(update) for update in map_updates(task["folder"])], place


def ours(task: Mapping[str, Any]) -> Callable[[], object]:
    """Fold and finish as the coordinator does."""
    state, updates, place = begin(task)
    chosen = find_method(task["method"])

    def run() -> object:
        total = Total(most=task["most"])
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


@benchmark("aggregation", "coordinator", ("flwr", "nvflare", "pfl"))
def command(peers: tuple[str, ...], say: Say) -> list[Row]:
    """Compare the speed of aggregation with other projects.

    Aggregate updates of a ResNet-18, and print the processor time. The first run installs the other
    projects into the user's cache.
    """
    rows = [row for count in GOALS for row in measure_fedavg(count, peers)]
    return rows + measure_methods()
