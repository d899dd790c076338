"""What a device measures of itself before it joins: processors, memory, data moments, and the time of a training step.

Runs in the training process, under its limits, so that what is measured is what training will have.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from edge_agent.limits import Limits, available_cpus, available_memory
from federated.local import surveyed
from federated.task import Card, Recipe, Timing
from federated.training import train
from federated.wire.messages import Run
from models.families import build
from models.submodel import Submodel

__all__ = ["Measured", "best_threads", "measure", "time_step"]

WARM_UP = 2  # steps not counted
WINDOWS = 3  # the quickest counts: others were disturbed by something else
WINDOW = 0.3  # seconds of one: many scheduling periods, so that a fraction of a processor shows
STEPS = 2  # and at least so many


@dataclass(frozen=True)
class Measured:
    """A profile without what only the link knows; fields as in `federated.task.Profile`."""

    host: str
    system: str
    cpus: float
    memory: int
    runtime: str
    data: Card
    timings: tuple[Timing, ...]
    survey: Mapping[str, Any]


def measure(run: Run, data: Any, limits: Limits, device: str) -> Measured:
    """Measures this process, on its own data, with the submodels that the run asks to be timed; settles how many threads it uses."""
    if run.calibration and device == "cpu":
        torch.set_num_threads(best_threads(run.calibration[-1], run.batch, data, limits.threads))
    timings = tuple(Timing(submodel, run.batch, time_step(submodel, run.batch, data, device)) for submodel in run.calibration)
    memory = torch.cuda.mem_get_info()[0] if device == "cuda" else available_memory(limits)
    return Measured(
        host=platform.node(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=available_cpus(limits),
        memory=memory,
        runtime=f"torch {torch.__version__} {device}",
        data=data.card(),
        timings=timings,
        survey=surveyed(run, data, memory, device),
    )


def best_threads(submodel: Submodel, batch: int, data: Any, most: int) -> int:
    """One or `most`, whichever steps quicker: threads that share small work, or processors with other agents, cost more than they bring."""
    times = {}
    for threads in sorted({1, most}):
        torch.set_num_threads(threads)
        times[threads] = time_step(submodel, batch, data, "cpu")
    return min(times, key=times.__getitem__)


def time_step(submodel: Submodel, batch: int, data: Any, device: str) -> float:
    """Seconds of one training step (forward, backward, update): the mean of the quickest window, since under a quota the quickest step would lie."""
    net = build(submodel).to(device)
    size = max(2, min(batch, len(data.x)))
    x, y = data.x[:size], data.y[:size]
    recipe = Recipe(batch=size)
    for _ in range(WARM_UP):
        train(net, submodel, recipe, x, y, labels=data.labels, seed=0)
    means = []
    for _ in range(WINDOWS):
        steps, start = 0, time.perf_counter()
        while steps < STEPS or time.perf_counter() - start < WINDOW:
            train(net, submodel, recipe, x, y, labels=data.labels, seed=steps)
            steps += 1
        means.append((time.perf_counter() - start) / steps)
    return min(means)
