"""`python -m benchmarks training`: time training steps of submodels, compared with the time that
their multiply-adds suggest, and the training loop of devices, compared with a plain PyTorch loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Row, compare
from benchmarks.interleaved_timing import time_interleaved
from federated.runtime.console import Say
from federated.task import Recipe
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import train
from models.cost import cost
from models.layers.batch_norm import set_norm
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import arrange_channels, build, full

__all__ = ["command", "make_rows", "make_tasks"]

MODEL, BATCH, STEPS = "preresnet-18", 32, 4
EXCESS = {
    "0.75": 1.1,
    "0.5": 1.1,
    "0.25": 1.4,
}  # most times what the multiply-adds suggest, by width
LOOP = 0.95  # least ratio of the plain loop's time to ours
WHOLE, PLAIN = "1", "plain loop"


def make_tasks(model: str) -> dict[str, Callable[[], object]]:
    """Return the tasks to time: training of a submodel by width, and a plain loop of the whole."""
    whole = full(network(model, (3, 32, 32), 10))
    rng = np.random.default_rng(0)
    data = TrainingSet(
        rng.integers(0, 256, (BATCH * STEPS, 3, 32, 32), np.uint8),
        rng.integers(0, 10, BATCH * STEPS),
    )
    made = {
        width: make_ours(replace(whole, width=float(width)), data) for width in (WHOLE, *EXCESS)
    }
    return {**made, PLAIN: make_plain_loop(whole, data)}


def make_ours(submodel: Submodel, data: TrainingSet) -> Callable[[], object]:
    net = arrange_channels(build(submodel), submodel)
    return lambda: train(net, submodel, Recipe(batch=BATCH), data, seed=0)


def make_plain_loop(submodel: Submodel, data: TrainingSet) -> Callable[[], object]:
    """Return the same training with nothing but PyTorch."""
    net, recipe = arrange_channels(build(submodel), submodel), Recipe()
    set_norm(net, recipe.norm)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)

    def run() -> None:
        net.train()
        optimiser = torch.optim.SGD(
            net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.decay
        )
        order = torch.randperm(len(y))
        for start in range(0, len(y), BATCH):
            chosen = order[start : start + BATCH]
            optimiser.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return run


def make_rows(model: str, times: Mapping[str, float]) -> list[Row]:
    """Return the comparisons of measured milliseconds."""
    whole = full(network(model, (3, 32, 32), 10))
    macs = cost(whole).macs
    own, plain = times[WHOLE] / STEPS, times[PLAIN] / STEPS
    shares = {width: cost(replace(whole, width=float(width))).macs / macs for width in EXCESS}
    rows = [
        compare(
            f"{model}, step of width {width} (ms)",
            times[width] / STEPS,
            1 / most,
            limit=Baseline("by multiply-adds", own * shares[width]),
        )
        for width, most in EXCESS.items()
    ]
    return [*rows, compare(f"{model}, step (ms)", own, LOOP, peer=Baseline(PLAIN, plain))]


@benchmark("training", "train")
def command(say: Say) -> list[Row]:
    """Time training steps of submodels.

    Print the processor time of a step with one thread, compared with that of the whole network
    times the ratio of multiply-adds, and with a plain PyTorch loop.
    """
    torch.set_num_threads(1)
    return make_rows(MODEL, time_interleaved(make_tasks(MODEL), time.process_time))
