"""Steps are predicted from a few small submodels, for machines with known prices and for a measured
one.

`step_times.csv`: seconds of a training step (the fastest of many, batch 32, images of 3 x 32 x 32,
one thread of an otherwise idle x86 server with AVX-512), and bytes of the process before the
network was built and at the peak. The first three rows of each model are like the submodels that a
device times; the others are predicted from them.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from federated.task import Timing
from federated.training.time_prediction import (
    KINDS,
    TRUST,
    count_work,
    fit,
    fit_machine,
    predict,
    step_seconds,
)
from models.cost import cost
from models.menu import menu, probes
from models.named_network import network
from models.step_workload import work
from models.submodel import Moments, Submodel
from models.submodel_building import full
from tests.support.smallest_networks import SMALL, small

NETWORK = network("preresnet", (1, 8, 8), 10)
TIMED = probes(NETWORK, (1, 4))
MENU = menu(NETWORK, (0.2, 0.75, 1.0), (1, 3))
MEASURED = Path(__file__).parent / "step_times.csv"
MODELS = ("preresnet-18", "mobilenet-v2-cifar", "vit-tiny-32")


@lru_cache
def measured(model: str) -> list[tuple[Submodel, float, int, int]]:
    """Return the submodel, the seconds, and the bytes before and at the peak, of each row."""
    with MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    made = network(model, (3, 32, 32), 10, Moments((127.0,), (60.0,)))
    depths = [tuple(map(int, row["depths"].split("."))) for row in rows]
    submodels = [
        menu(made, (float(row["width"]),), (depth,))[0]
        for row, depth in zip(rows, depths, strict=True)
    ]
    return [
        (s, float(row["seconds"]), int(row["base"]), int(row["peak"]))
        for s, row in zip(submodels, rows, strict=True)
    ]


def law(
    submodel: Submodel,
    batch: int,
    speed: float,
    off: tuple[float, float, float],
    *,
    training: bool = True,
) -> float:
    """Return the seconds on a machine with 16 lanes and prices of `off` times those of its kind."""
    return (
        float(count_work(submodel, batch, 16, training) @ np.multiply(KINDS[2].prices, off)) / speed
    )


def timings(
    batch: int, speed: float, off: tuple[float, float, float], *, training: bool = True
) -> tuple[Timing, ...]:
    return tuple(Timing(s, batch, law(s, batch, speed, off, training=training)) for s in TIMED)


@pytest.mark.parametrize("speed", [1e9, 1e11])
@pytest.mark.parametrize("training", [True, False])
def test_a_machine_of_a_known_kind_is_predicted_exactly(speed, training):
    batch = 32 if training else 1
    known = timings(batch, speed, (1, 1, 1), training=training)
    for submodel in MENU:
        assert predict(known, submodel, batch, training=training) == pytest.approx(
            law(submodel, batch, speed, (1, 1, 1), training=training), rel=1e-6
        )


@pytest.mark.parametrize(
    "off", [(3, 1, 1), (1, 3, 1), (1, 1, 3), (1 / 3, 1, 1), (1, 1 / 3, 1), (1, 1, 1 / 3)]
)
def test_a_machine_whose_prices_are_unlike_its_kind_is_predicted_nearly(off):
    made = network("preresnet-18", (3, 32, 32), 10)
    known = [Timing(s, 32, law(s, 32, 1e11, off)) for s in probes(made, (1, 2))]
    errors = [
        step_seconds(known, s, 32) / law(s, 32, 1e11, off) - 1
        for s in menu(made, (0.2, 0.7, 1.0), (1, 2))
    ]
    assert np.abs(errors).mean() < 0.08
    assert np.abs(errors).max() < 0.15


def test_accelerators_and_processors_are_distinguished():
    """On an accelerator a call costs 50 times as much, relative to other work."""
    made = network("preresnet-18", (3, 32, 32), 10)
    known = tuple(Timing(s, 32, law(s, 32, 1e11, (1, 1, 50))) for s in probes(made, (1, 2)))
    assert fit_machine(known, True)[0] == KINDS[-1]
    assert fit_machine(timings(32, 1e11, (1, 1, 1)), True)[0] == KINDS[2]
    for submodel in menu(made, (0.2, 1.0), (1, 2)):
        assert step_seconds(known, submodel, 32) == pytest.approx(
            law(submodel, 32, 1e11, (1, 1, 50)), rel=0.01
        )


def test_a_fit_of_two_timings_is_where_the_slope_of_its_loss_is_zero():
    """One price and timings of 1 s and 3 s for the same work: the typical price is scaled to 2."""
    loss, prices = fit(np.ones((2, 1)), np.array([1.0, 3.0]), np.array([7.0]))
    x = np.log(prices[0] / 2)
    errors = prices[0] / np.array([1.0, 3.0]) - 1
    assert loss == pytest.approx((errors @ errors + (TRUST * x) ** 2) / 2, rel=1e-12)
    slope = errors @ (prices[0] / np.array([1.0, 3.0])) + TRUST**2 * x
    assert slope == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_a_fit_loses_no_more_than_that_of_scipy(seed):
    optimize = pytest.importorskip("scipy.optimize")
    draw = np.random.default_rng(seed)
    count, typical = draw.integers(1, 9), np.array(KINDS[seed % len(KINDS)].prices)
    work = np.exp(draw.normal(0, (2, 2, 1), (count, 3))) * (1e9, 1e7, 100)
    off = np.exp(draw.normal(0, (0.1, 1, 3)[seed % 3], 3))
    seconds = work @ (typical * off) / 1e10 * np.exp(draw.normal(0, seed % 4, count))
    loss, prices = fit(work, seconds, typical)
    scaled = typical * np.median(seconds / (work @ typical))

    def residuals(logs):
        return np.concatenate(
            [work @ (scaled * np.exp(logs)) / seconds - 1, TRUST * np.asarray(logs)]
        )

    found = optimize.least_squares(residuals, np.zeros(3), xtol=1e-12, ftol=1e-14, gtol=1e-12)
    assert loss <= found.cost * (1 + 1e-9) + 1e-24  # where both fit exactly, rounding is left
    assert np.log(prices / scaled) == pytest.approx(found.x, abs=1e-4)


def test_another_batch_is_predicted_too():
    known = timings(16, 1e11, (1, 1, 1))
    for batch in (8, 64):
        assert step_seconds(known, MENU[-1], batch) == pytest.approx(
            law(MENU[-1], batch, 1e11, (1, 1, 1)), rel=0.01
        )


def test_a_timed_submodel_is_not_predicted_and_without_timings_nothing_is():
    odd = (*timings(32, 1e11, (1, 1, 1)), Timing(MENU[-1], 32, 7.0))
    assert step_seconds(odd, MENU[-1], 32) == 7.0
    assert step_seconds((), MENU[-1], 32) == predict((), MENU[-1], 1, training=False) == 0.0


@pytest.mark.parametrize("family", sorted(SMALL))
def test_wider_and_deeper_takes_longer_in_every_family(family):
    made = small(family)
    known = [
        Timing(s, 32, float(count_work(s, 32, 8, True) @ (2e-11, 1e-10, 5e-5)))
        for s in probes(made, (1, 10**6))
    ]
    deepest = tuple(map(len, full(made).mask))
    narrow, wide = (menu(made, (width,), (deepest,))[0] for width in (0.55, 1.0))
    assert 0 < step_seconds(known, narrow, 32) < step_seconds(known, wide, 32)
    if max(deepest, default=1) > 1:
        shallow = menu(made, (1.0,), (1,))[0]
        assert step_seconds(known, shallow, 32) < step_seconds(known, wide, 32)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_a_real_machine_are_within_ten_percent_on_average_and_thirty_at_worst(model):
    rows = measured(model)
    known = [Timing(submodel, 32, seconds) for submodel, seconds, *_ in rows[:3]]
    errors = [
        abs(step_seconds(known, submodel, 32) / seconds - 1) for submodel, seconds, *_ in rows[3:]
    ]
    assert np.mean(errors) <= 0.10
    assert max(errors) <= 0.30
    macs = [work(submodel, 32).macs[0] for submodel, *_ in rows]
    price = np.mean(
        [seconds / count for count, (_, seconds, *_) in zip(macs, rows[:3], strict=False)]
    )
    rival = [
        abs(count * price / seconds - 1)
        for count, (_, seconds, *_) in zip(macs[3:], rows[3:], strict=True)
    ]
    assert np.mean(errors) < np.mean(rival) / 2, "multiply-adds alone say less than half as well"


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_memory_of_a_real_process_is_within_a_factor_of_one_point_four(model):
    for submodel, _, base, peak in measured(model):
        predicted = cost(submodel, 32).memory
        assert 1 / 1.4 <= (base + predicted) / peak <= 1.4
        assert 1 / 1.4 <= predicted / (peak - base) <= 1.4, "beyond what the process was before"
