"""Time to fold ten updates of a ResNet-18, against reading their bytes once."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from benchmarks.timings import Row, time_interleaved
from federated.engine.aggregate import Total, fold
from federated.method import State, configure
from federated.methods.catalogue import method
from federated.task import Update
from models.families.catalogue import initial, network
from models.slicing import extract
from models.submodel import Submodel

__all__ = ["measure"]

AGENTS = 10
# a mean, a mean with a weight per row, and layers scaled by their norm
COMMON = ("fedavg", "heterofl", "fedfa")


def measure() -> list[Row]:
    torch.set_num_threads(1)
    made = network("preresnet-18", (3, 32, 32), 10)
    rows = []
    for name in COMMON:
        chosen = method(name)
        settings = configure(chosen, {})
        menu = chosen.menu(made, settings)
        state = chosen.start(initial(made, 0), menu, settings)
        updates = [
            update(state, chosen.place(state, s).submodel, i, name)
            for i, s in enumerate((menu * AGENTS)[:AGENTS])
        ]
        read = [value for u in updates for value in u.tensors.values()]
        times = time_interleaved(
            {"ours": partial(run_round, name, state, updates), "limit": partial(touch, read)}
        )
        rows.append(
            Row(
                f"{name}, {AGENTS} agents",
                times["ours"],
                times["limit"],
                times["limit"] / times["ours"],
            )
        )
    return rows


def update(state: State, submodel: Submodel, index: int, name: str) -> Update:
    chosen = method(name)
    received = {
        k: v.clone() for k, v in extract(state.tensors, chosen.place(state, submodel)).items()
    }
    return Update(
        "bench",
        1,
        1,
        f"a{index}",
        "train",
        submodel,
        "r0",
        10,
        1,
        received,
        {"labels": [0, 1], "loss": 1.0},
    )


def run_round(name: str, state: State, updates: list[Update]) -> State:
    chosen, total = method(name), Total()
    for one in updates:
        fold(total, chosen.parts(state, chosen.place(state, one.submodel), one), (one.agent,))
    return chosen.finish(state, total, np.random.default_rng(0))


def touch(values: list[torch.Tensor]) -> float:
    return sum(float(value.sum()) for value in values)
