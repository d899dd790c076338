"""Trimmed mean: average the values of all devices that hold a coordinate, without the f largest and
the f smallest (Yin et al., arXiv 1803.01498, Definition 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from federated.engine.robust.arithmetic import Array, majority, per_coordinate
from federated.engine.robust.rule import Rule

__all__ = ["TRIMMED"]


def trimmed_mean(ordered: Array, counts: NDArray[np.int64], f: int) -> NDArray[np.float64]:
    """Return the mean of each row without f values at either end.

    ordered: [coordinates, devices], ascending
    counts: number of values at the start of each row
    """
    places = np.arange(ordered.shape[1])
    middle = (places >= f) & (places < (counts - f)[:, None])
    found: NDArray[np.float64] = ordered.sum(axis=1, where=middle, dtype=np.float64) / np.maximum(
        counts - 2 * f, 1
    )
    return found


TRIMMED = Rule(
    name="trimmed",
    help="the mean of each coordinate without the f largest and the f smallest values",
    compares="coordinate",
    needed=majority,
    promises="between",
    combine=lambda kept, tensors, f: per_coordinate(kept, tensors, f, trimmed_mean),
)
