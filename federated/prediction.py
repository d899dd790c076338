"""How long a submodel will take on a device, from the few that the device has timed.

The time of a training step is fitted per device, by non-negative least squares on relative error, as a sum of
multiply-adds, activations and blocks, from the steps that it timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from federated.task import Timing
from models.cost import cost
from models.submodel import Submodel

__all__ = ["latency_seconds", "step_seconds"]

Features = Callable[[Submodel, int], NDArray[np.float64]]


def step_seconds(timings: Sequence[Timing], submodel: Submodel, batch: int) -> float:
    """Predicted seconds of one training step of `batch` examples on the device that took these timings; 0 where there are none."""
    return predicted(timings, submodel, batch, _training)


def latency_seconds(timings: Sequence[Timing], submodel: Submodel, batch: int = 1) -> float:
    """Predicted seconds of one inference of `batch` examples, from timings of inferences; 0 where there are none."""
    return predicted(timings, submodel, batch, _inference)


def predicted(timings: Sequence[Timing], submodel: Submodel, batch: int, features: Features) -> float:
    """What was timed, as it was; anything else by the features' weights."""
    measured = {(t.submodel, t.batch): t.seconds for t in timings}
    if (submodel, batch) in measured:
        return measured[submodel, batch]
    if not timings:
        return 0.0
    seconds = np.array([t.seconds for t in timings])
    rows = np.array([features(t.submodel, t.batch) for t in timings])
    weights, _ = nnls(rows / seconds[:, None], np.ones(len(seconds)))
    return float(features(submodel, batch) @ weights)


def _training(submodel: Submodel, batch: int) -> NDArray[np.float64]:
    """Work of a step, scaled to near 1: arithmetic, memory traffic, and calls of kernels, which grow with depth alone."""
    what = cost(submodel, batch)
    return np.array([what.macs * batch / 1e8, what.activations * batch / 1e6, sum(map(sum, submodel.mask)) + 1.0])


def _inference(submodel: Submodel, batch: int) -> NDArray[np.float64]:
    """Work of an inference, as of a step."""
    return _training(submodel, batch)
