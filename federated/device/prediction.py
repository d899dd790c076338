"""How long a submodel will take on a device, from the few that the device has timed.

The seconds of a step are a sum of what it asks of the machine (`models.work`), each at the
machine's own price: multiply-adds with channels filled up to whole vectors, bytes moved, and calls
of operations. The prices are fitted per device by non-negative least squares on relative error. As
many timings as prices leave much open, so the prices are held, gently, to the ratios of a kind of
machine; of the kinds, the one that fits best counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from federated.task import Timing
from models.cost import count_branches
from models.families.catalogue import parameters
from models.submodel import Submodel
from models.work import LANES, work

__all__ = ["latency_seconds", "step_seconds"]

Vector = NDArray[np.float64]

# in the ratios of a kind: how far off a relative error of 1 lets the logarithm of a price be
TRUST = 0.15
STEPS = 100  # of a fit, at most; 9 are usual, and 27 suffice for 99 in 100
PRECISION = 1e-10  # relative change of a price at which a fit ends
# times the bytes of the parameters: it reads weight, gradient and momentum, and writes weight and
# momentum
OPTIMISER = 5


@dataclass(frozen=True)
class Kind:
    """A kind of machine: floats of its vectors, and what a multiply-add, a byte moved and a call
    cost, beside each other.

    doubt: by how much less error it must explain the timings than others.
    """

    lanes: int
    prices: tuple[float, float, float]
    doubt: float = 0.0


# An accelerator is quick at everything but calls, and so explains any timings of tiny networks.
KINDS = (
    *(Kind(lanes, (1.0, 10.0, 2e6)) for lanes in LANES),
    Kind(LANES[-1], (1.0, 10.0, 1e8), doubt=0.03),
)


def step_seconds(timings: Sequence[Timing], submodel: Submodel, batch: int) -> float:
    """Predicted seconds of one training step of `batch` examples on the device that took these
    timings; 0 where there are none.
    """
    return predicted(tuple(timings), submodel, batch, training=True)


def latency_seconds(timings: Sequence[Timing], submodel: Submodel, batch: int = 1) -> float:
    """Predicted seconds of one inference of `batch` examples, from timings of inferences; 0 where
    there are none.
    """
    return predicted(tuple(timings), submodel, batch, training=False)


def predicted(
    timings: tuple[Timing, ...], submodel: Submodel, batch: int, *, training: bool
) -> float:
    """What was timed, as it was; anything else by the machine's prices."""
    measured = {(t.submodel.unowned, t.batch): t.seconds for t in timings}
    if (submodel.unowned, batch) in measured:
        return measured[submodel.unowned, batch]
    if not timings:
        return 0.0
    kind, prices = fitted(timings, training)
    return float(asked(submodel, batch, kind.lanes, training) @ prices)


# of a large fleet every device: a fit takes as long as all the rest of a decision
@lru_cache(maxsize=2**16)
def fitted(timings: tuple[Timing, ...], training: bool) -> tuple[Kind, Vector]:
    """The kind of machine that explains the timings best, and its prices in seconds."""
    seconds = np.array([t.seconds for t in timings])
    found = []
    for kind in KINDS:
        work = np.array([asked(t.submodel, t.batch, kind.lanes, training) for t in timings])
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


def asked(submodel: Submodel, batch: int, lanes: int, training: bool) -> Vector:
    """Multiply-adds, bytes moved and calls of a training step, its optimiser included, or of an
    inference.
    """
    known = work(submodel.plain, batch, training=training)
    moved = known.moved
    if training:
        moved += OPTIMISER * 4 * (parameters(submodel) + count_branches(submodel)[0])
    return np.array([known.macs[LANES.index(lanes)], moved, known.calls], np.float64)
