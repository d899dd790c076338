"""`python -m benchmarks predict`: compare the predicted time and memory of training steps with
measured ones. Predictions come from measurements of three small submodels (probes).

Submodels are drawn from a printed seed. Each is measured in a fresh process with one thread, and
predicted from the small ones (probes) alone. The probes are timed before, between and after, which
shows if the speed of the machine changes, and affects both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all
from benchmarks.cost_prediction.training_step_process import Taken, ask
from edge_agent.device.heat_and_load import BUSY, Load
from federated.runtime.console import Say
from federated.runtime.extension_errors import explain_lookup
from federated.task import Timing
from federated.training.time_prediction import step_seconds
from models.cost import cost
from models.families.catalogue import POINT
from models.menu import menu, probes
from models.named_network import network
from models.submodel import Moments, Network, Submodel
from models.submodel_building import full

__all__ = [
    "Prediction",
    "command",
    "draw_submodels",
    "find_network",
    "measure",
    "summarise",
    "warn_if_disturbed",
]

FAMILIES = ("preresnet-18", "mobilenet-v2-cifar", "vit-tiny-32")
PICTURE, CLASSES = (3, 32, 32), 10
NARROWEST = 0.1
BETWEEN = 8  # submodels timed before the probes are timed again; the median of these times is used
DRIFT = 0.15  # most difference between measurements of a probe on an idle machine
MEAN, WORST, MEMORY = 0.10, 0.30, 1.4  # the goals


@dataclass(frozen=True)
class Prediction:
    """A submodel, predicted and measured.

    predicted_ms, measured_ms: milliseconds of a step
    error: predicted over measured, less 1
    baseline_error: the same for a prediction from multiply-adds alone
    base_bytes: bytes of the process before
    predicted_bytes, measured_bytes: bytes beyond those
    memory_ratio: of predicted and measured peak with the base, the larger over the smaller
    beyond_ratio: the same without the base
    """

    submodel: str
    predicted_ms: float
    measured_ms: float
    error: float
    baseline_error: float
    base_bytes: int
    predicted_bytes: int
    measured_bytes: int
    memory_ratio: float
    beyond_ratio: float


def draw_submodels(made: Network, seed: int, count: int) -> list[Submodel]:
    """Return `count` random submodels, each with its own width and blocks per section, none of them
    a probe.
    """
    rng = np.random.default_rng([seed, *made.family.encode()])
    sizes = [len(section) for section in full(made).mask]
    chosen, known = list[Submodel](), {*find_probes(made)}
    while len(chosen) < count:
        width = round(float(rng.uniform(NARROWEST, 1)), 3)
        depth = tuple(int(rng.integers(1, size + 1)) for size in sizes)
        (submodel,) = menu(made, (width,), (depth,))
        if submodel not in known:
            known.add(submodel)
            chosen.append(submodel)
    return chosen


def find_probes(made: Network) -> tuple[Submodel, ...]:
    """Return the probes of a network."""
    return probes(made, (1, max(len(section) for section in full(made).mask)))


def measure(made: Network, submodels: Sequence[Submodel], batch: int, say: Say) -> list[Prediction]:
    """Predict and measure each submodel, and say if the machine was too busy for reliable times."""
    small, load, taken = find_probes(made), Load(), list[Taken]()
    looks = [[found.seconds for found in ask(small, batch)]]
    for number, submodel in enumerate(submodels, 1):
        taken += ask([submodel], batch)
        if number % BETWEEN == 0 or number == len(submodels):
            looks.append([found.seconds for found in ask(small, batch)])
    busy, times = load.share(), list(zip(*looks, strict=True))
    drift = max(max(known) / min(known) - 1 for known in times)
    warn_if_disturbed(busy, drift, say)
    timings = [
        Timing(submodel, batch, statistics.median(known))
        for submodel, known in zip(small, times, strict=True)
    ]
    return [
        predict(submodel, batch, timings, found)
        for submodel, found in zip(submodels, taken, strict=True)
    ]


def warn_if_disturbed(busy: float, drift: float, say: Say) -> None:
    """Say if times are not reliable.

    busy: fraction of the processors that other processes used
    drift: largest difference between measurements of a probe
    """
    if busy >= BUSY or drift >= DRIFT:
        say(
            f"other processes used {busy:.0%} of the processors, and the speed changed by "
            f"{drift:.0%}: measure again"
        )


def predict(submodel: Submodel, batch: int, timings: Sequence[Timing], taken: Taken) -> Prediction:
    """Return a submodel's predictions and measurements."""
    seconds, memory = step_seconds(timings, submodel, batch), cost(submodel, batch).memory
    beyond = taken.peak - taken.base
    price = statistics.mean(t.seconds / cost(t.submodel).training_macs for t in timings)
    return Prediction(
        submodel=submodel.name,
        predicted_ms=seconds * 1000,
        measured_ms=taken.seconds * 1000,
        error=seconds / taken.seconds - 1,
        baseline_error=price * cost(submodel).training_macs / taken.seconds - 1,
        base_bytes=taken.base,
        predicted_bytes=memory,
        measured_bytes=beyond,
        memory_ratio=divide(taken.base + memory, taken.peak),
        beyond_ratio=divide(memory, beyond),
    )


def divide(a: float, b: float) -> float:
    """Return the larger over the smaller."""
    return max(a / b, b / a)


def summarise(family: str, predictions: Sequence[Prediction]) -> list[Row]:
    """Return the mean and the largest error of the time, compared with a prediction from
    multiply-adds alone, and the largest ratio of memory.
    """
    errors = [100 * abs(one.error) for one in predictions]
    baseline = [100 * abs(one.baseline_error) for one in predictions]
    memory = max(one.memory_ratio for one in predictions)
    rows = [
        row
        for what, summary, most in (("mean", statistics.mean, MEAN), ("largest", max, WORST))
        for row in compare_all(
            f"{family}, {what} error of time (%)",
            summary(errors),
            {"multiply-adds": summary(baseline)},
            Baseline(AT_MOST, 100 * most),
            {AT_MOST: 1.0},
        )
    ]
    name = f"{family}, largest ratio of predicted and measured memory"
    return [*rows, compare(name, memory, 1.0, limit=Baseline(AT_MOST, MEMORY))]


def name_network(made: Network) -> str:
    return f"{made.family}-{made.preset}"


def format_prediction(one: Prediction) -> str:
    errors = f"{one.error:+8.1%}{one.baseline_error:+9.1%}"
    time = f"{one.predicted_ms:10.1f}{one.measured_ms:10.1f}{errors}"
    beyond = f"{one.predicted_bytes / 1e6:10.0f}{one.measured_bytes / 1e6:10.0f}"
    return f"{one.submodel:28}{time}{beyond}{one.memory_ratio:8.2f}{one.beyond_ratio:8.2f}"


HEAD = (
    f"{'':28}{'pred. ms':>10}{'took ms':>10}{'error':>8}{'by MACs':>9}"
    f"{'pred. MB':>10}{'took MB':>10}{'whole':>8}{'beyond':>8}"
)


@benchmark("predict", "train")
@click.option("--seed", default=7, show_default=True, metavar="N", help="seed of the submodels")
@click.option(
    "--count",
    default=24,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="number of submodels per family",
)
@click.option(
    "--families",
    default=",".join(FAMILIES),
    show_default=True,
    metavar="NAME,...",
    help="families or presets of networks for images",
)
@click.option(
    "--batch",
    default=32,
    show_default=True,
    type=click.IntRange(min=2),
    metavar="N",
    help="examples per training step",
)
def command(seed: int, count: int, families: str, batch: int, say: Say) -> list[Row]:
    """Compare predicted with measured training steps.

    Predict the time and memory of random submodels from measurements of three small ones. Then
    measure the random submodels.
    """
    networks = [find_network(name) for name in families.split(",")]
    say(f"seed {seed}, batch {batch}, one thread, images of {' x '.join(map(str, PICTURE))}")
    rows = list[Row]()
    for made in networks:
        name = name_network(made)
        say(f"{name}: measuring {count} submodels\n{HEAD}")
        found = measure(made, draw_submodels(made, seed, count), batch, say)
        say("\n".join(map(format_prediction, found)))
        rows += summarise(name, found)
    return rows


def find_network(name: str) -> Network:
    """Return a network for images. Unknown, ConfigError: there is none of this name."""
    with explain_lookup(POINT, "--families: {}"):
        return network(name, PICTURE, CLASSES, Moments((127.0,), (60.0,)))
