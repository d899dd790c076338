"""`python -m benchmarks predict`: compare the predicted time and memory of training steps with
measured ones. Predictions come from measurements of three small submodels (probes).

Submodels are drawn from a printed seed. Each is measured in a fresh process with one thread, and
predicted from the small ones (probes) alone. The probes are timed before, between and after, which
shows if the speed of the machine changes, and affects both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import click
import numpy as np

from benchmarks.cost_prediction.training_step_process import Taken, ask
from edge_agent.device.heat_and_load import BUSY, Load
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.runtime.extension_errors import explain_lookup
from federated.task import Timing
from federated.training.time_prediction import step_seconds
from models.cost import cost
from models.families.catalogue import POINT
from models.menu import menu, probes
from models.named_network import network
from models.submodel import Moments, Network, Submodel
from models.submodel_building import full

__all__ = ["Row", "command", "draw_submodels", "measure", "summarise"]

FAMILIES = ("preresnet-18", "mobilenet-v2-cifar", "vit-tiny-32")
PICTURE, CLASSES = (3, 32, 32), 10
NARROWEST = 0.1
BETWEEN = 8  # submodels timed before the probes are timed again; the median of these times is used
DRIFT = 0.15  # most difference between measurements of a probe on an idle machine
MEAN, WORST, MEMORY = 0.10, 0.30, 1.4  # the goals


@dataclass(frozen=True)
class Row:
    """A submodel.

    predicted_ms, measured_ms: milliseconds of a step
    error: predicted over measured, less 1
    baseline_error: the same for a prediction from multiply-adds alone
    base_bytes: bytes of the process before
    predicted_bytes, measured_bytes: bytes beyond those
    memory_ratio: of predicted and measured peak with the base, the larger over the smaller
    beyond_ratio: the same without the base
    """

    family: str
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


@dataclass(frozen=True)
class Summary:
    """A family.

    mape, worst: mean and largest error of the time
    baseline_mape, baseline_worst: the same for multiply-adds alone
    memory_ratio_worst, memory_beyond_worst: largest ratios, as in Row
    probes: submodels that predictions are made from
    drift: largest difference between measurements of a probe
    busy: fraction of the processors that other processes used
    loaded: True if the machine was too busy for reliable times
    met: True if all goals are met
    """

    family: str
    submodels: int
    mape: float
    worst: float
    baseline_mape: float
    baseline_worst: float
    memory_ratio_worst: float
    memory_beyond_worst: float
    probes: tuple[str, ...]
    drift: float
    busy: float
    loaded: bool
    met: bool


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


def measure(
    made: Network, submodels: Sequence[Submodel], batch: int, say: Callable[[Row], None]
) -> tuple[list[Row], Summary]:
    """Return a row for each submodel, and their summary."""
    small, load, taken = find_probes(made), Load(), list[Taken]()
    looks = [[found.seconds for found in ask(small, batch)]]
    for number, submodel in enumerate(submodels, 1):
        taken += ask([submodel], batch)
        if number % BETWEEN == 0 or number == len(submodels):
            looks.append([found.seconds for found in ask(small, batch)])
    busy, times = load.share(), list(zip(*looks, strict=True))
    drift = max(max(known) / min(known) - 1 for known in times)
    timings = [
        Timing(submodel, batch, statistics.median(known))
        for submodel, known in zip(small, times, strict=True)
    ]
    rows = [
        make_row(made, submodel, batch, timings, found)
        for submodel, found in zip(submodels, taken, strict=True)
    ]
    for one in rows:
        say(one)
    return rows, summarise(rows, tuple(submodel.name for submodel in small), drift, busy)


def make_row(
    made: Network, submodel: Submodel, batch: int, timings: Sequence[Timing], taken: Taken
) -> Row:
    """Return a submodel's predictions and measurements."""
    seconds, memory = step_seconds(timings, submodel, batch), cost(submodel, batch).memory
    beyond = taken.peak - taken.base
    price = statistics.mean(t.seconds / cost(t.submodel).training_macs for t in timings)
    return Row(
        family=name_network(made),
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


def summarise(rows: Sequence[Row], small: tuple[str, ...], drift: float, busy: float) -> Summary:
    errors, baseline = (
        [abs(row.error) for row in rows],
        [abs(row.baseline_error) for row in rows],
    )
    mean, worst, memory = (
        statistics.mean(errors),
        max(errors),
        max(row.memory_ratio for row in rows),
    )
    return Summary(
        family=rows[0].family,
        submodels=len(rows),
        mape=mean,
        worst=worst,
        baseline_mape=statistics.mean(baseline),
        baseline_worst=max(baseline),
        memory_ratio_worst=memory,
        memory_beyond_worst=max(row.beyond_ratio for row in rows),
        probes=small,
        drift=drift,
        busy=busy,
        loaded=busy >= BUSY or drift >= DRIFT,
        met=mean <= MEAN and worst <= WORST and memory <= MEMORY,
    )


def name_network(made: Network) -> str:
    return f"{made.family}-{made.preset}"


def format_row(one: Row) -> str:
    errors = f"{one.error:+8.1%}{one.baseline_error:+9.1%}"
    time = f"{one.predicted_ms:10.1f}{one.measured_ms:10.1f}{errors}"
    beyond = f"{one.predicted_bytes / 1e6:10.0f}{one.measured_bytes / 1e6:10.0f}"
    return f"{one.submodel:28}{time}{beyond}{one.memory_ratio:8.2f}{one.beyond_ratio:8.2f}"


HEAD = (
    f"{'':28}{'pred. ms':>10}{'took ms':>10}{'error':>8}{'by MACs':>9}"
    f"{'pred. MB':>10}{'took MB':>10}{'whole':>8}{'beyond':>8}"
)


def format_summary(one: Summary) -> str:
    loaded = (
        f"; other processes used {one.busy:.0%} of the processors, and the speed changed by "
        f"{one.drift:.0%}: measure again"
        if one.loaded
        else ""
    )
    return (
        f"{one.family}, {one.submodels} submodels from {', '.join(one.probes)}: time "
        f"{one.mape:.1%} off on average, {one.worst:.1%} at worst "
        f"(by multiply-adds alone {one.baseline_mape:.1%} and {one.baseline_worst:.1%}); "
        f"memory of the process {one.memory_ratio_worst:.2f}x at worst, "
        f"{one.memory_beyond_worst:.2f}x beyond what it was before; "
        f"{'met' if one.met else 'missed'}{loaded}"
    )


@click.command("predict")
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
@FORMAT
def command(seed: int, count: int, families: str, batch: int, form: str) -> None:
    """Compare predicted with measured training steps.

    Predict the time and memory of random submodels from measurements of three small ones. Then
    measure the random submodels.
    """
    with report_errors("python -m benchmarks predict", "train", "interrupted"):
        say, rows, found = speaker(form), list[Row](), list[Summary]()
        networks = [find_network(name) for name in families.split(",")]
        say(f"seed {seed}, batch {batch}, one thread, images of {' x '.join(map(str, PICTURE))}")
        for made in networks:
            say(f"{name_network(made)}: measuring {count} submodels\n{HEAD}")
            some, one = measure(
                made, draw_submodels(made, seed, count), batch, lambda row: say(format_row(row))
            )
            rows, found = [*rows, *some], [*found, one]
            say(format_summary(one))
        result = {
            "seed": seed,
            "batch": batch,
            "families": [asdict(s) for s in found],
            "rows": [asdict(r) for r in rows],
        }
        print_result(result, form)


def find_network(name: str) -> Network:
    """Return a network for images. Unknown, ConfigError: there is none of this name."""
    with explain_lookup(POINT, "--families: {}"):
        return network(name, PICTURE, CLASSES, Moments((127.0,), (60.0,)))
