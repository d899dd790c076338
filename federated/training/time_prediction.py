"""Predict how long a submodel takes on a device, from the few submodels that it timed.

The seconds of a step are a weighted sum of its work (`models.step_workload`): multiply-adds with
channels padded to whole vectors, bytes moved, and calls of operations. The weights, here called
prices, are fitted per device by non-negative least squares on relative error. A few timings
determine the prices only roughly, so the fit also pulls them towards the typical ratios of a kind
of machine. The kind that fits best is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from federated.task import Timing
from models.cost import count_branches
from models.step_workload import LANES, work
from models.submodel import Submodel
from models.submodel_building import parameters

__all__ = ["predict", "step_seconds"]

Vector = NDArray[np.float64]

# strength of the pull towards a kind's ratios: a price that is off by a factor of e costs as much
# as a relative error of TRUST
TRUST = 0.15
STEPS = 100  # largest number of steps of a fit; 9 are usual, and 27 suffice for 99 of 100 fits
PRECISION = 1e-10  # relative change of a price at which a fit ends
# memory traffic of the optimiser, in sizes of the parameters: it reads weight, gradient and
# momentum, and writes weight and momentum
OPTIMISER = 5


@dataclass(frozen=True)
class Kind:
    """A kind of machine.

    lanes: floats per vector.
    prices: of a multiply-add, a byte moved and a call, relative to each other. A fit of all
        submodels of vit-tiny-32 found 1.1 for a byte on one machine, and 6.7 on another.
    doubt: added to its error when kinds are compared.
    """

    lanes: int
    prices: tuple[float, float, float]
    doubt: float = 0.0


# The last kind is an accelerator: only calls are slow, so it fits any timings of tiny networks.
KINDS = (
    *(Kind(lanes, (1.0, 5.0, 2e6)) for lanes in LANES),
    Kind(LANES[-1], (1.0, 5.0, 1e8), doubt=0.03),
)


def step_seconds(timings: Sequence[Timing], submodel: Submodel, batch: int) -> float:
    """Return the predicted seconds of a training step of `batch` examples on the device that took
    these timings; 0 without timings.
    """
    return predict(tuple(timings), submodel, batch, training=True)


@lru_cache(maxsize=2**16)  # room for every device of a large fleet, in each round
def predict(
    timings: tuple[Timing, ...], submodel: Submodel, batch: int, *, training: bool
) -> float:
    """Return the measured seconds of a training step or of an inference of `batch` examples if
    this submodel was timed, otherwise a prediction; 0 without timings.
    """
    measured = {(t.submodel.unowned, t.batch): t.seconds for t in timings}
    if (submodel.unowned, batch) in measured:
        return measured[submodel.unowned, batch]
    if not timings:
        return 0.0
    kind, prices = fit_machine(timings, training)
    return float(count_work(submodel, batch, kind.lanes, training) @ prices)


# a fit takes as long as the rest of a decision
@lru_cache(maxsize=2**16)
def fit_machine(timings: tuple[Timing, ...], training: bool) -> tuple[Kind, Vector]:
    """Return the kind of machine that fits the timings best, and its prices in seconds."""
    seconds = np.array([t.seconds for t in timings])
    found = []
    for kind in KINDS:
        work = np.array([count_work(t.submodel, t.batch, kind.lanes, training) for t in timings])
        error, prices = fit(work, seconds, np.array(kind.prices))
        found.append((error + kind.doubt, kind, prices))
    _, kind, prices = min(found, key=lambda row: row[0])
    return kind, prices


def fit(work: Vector, seconds: Vector, typical: Vector) -> tuple[float, Vector]:
    """Return the loss and the prices w >= 0 of the columns of `work` that minimise it.

    loss = (|work w / seconds - 1|^2 + |TRUST log(w / typical)|^2) / 2

    typical is first scaled to the machine's speed. The search runs over the logarithms of the
    prices, so they stay positive. It takes Newton steps with the absolute eigenvalues of the
    Hessian, which leave saddle points (Dauphin et al., arXiv 1406.2572), and halves a step until
    the loss does not grow.
    """
    typical = typical * np.median(seconds / (work @ typical))
    shares = work * typical / seconds[:, None]

    def loss(logs: Vector) -> float:
        errors = shares @ np.exp(logs) - 1
        return float(errors @ errors + TRUST**2 * logs @ logs) / 2

    logs = np.zeros(len(typical))
    now = loss(logs)
    for _ in range(STEPS):
        parts = shares * np.exp(logs)
        pull = parts.T @ (parts.sum(axis=1) - 1)  # gradient of the first term
        hessian = parts.T @ parts + np.diag(pull + TRUST**2)
        values, vectors = np.linalg.eigh(hessian)
        step = -vectors @ (vectors.T @ (pull + TRUST**2 * logs) / np.abs(values).clip(TRUST**2))
        step /= max(1.0, np.abs(step).max())  # a price changes by a factor of at most e
        while np.abs(step).max() > PRECISION and (then := loss(logs + step)) > now:
            step /= 2
        if np.abs(step).max() <= PRECISION:
            break
        logs, now = logs + step, then
    return now, typical * np.exp(logs)


def count_work(submodel: Submodel, batch: int, lanes: int, training: bool) -> Vector:
    """Return the multiply-adds, bytes moved and calls of a training step with its optimiser, or of
    an inference.
    """
    known = work(submodel.plain, batch, training=training)
    moved = known.moved
    if training:
        moved += OPTIMISER * 4 * (parameters(submodel) + count_branches(submodel)[0])
    return np.array([known.macs[LANES.index(lanes)], moved, known.calls], np.float64)
