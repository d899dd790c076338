"""Median: take the middle value among the devices that hold a coordinate, or the mean of the two
middle ones (Yin et al., arXiv 1803.01498, Definition 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from federated.engine.robust.arithmetic import Array, majority, per_coordinate
from federated.engine.robust.rule import Rule

__all__ = ["MEDIAN", "median"]


def median(ordered: Array, counts: NDArray[np.int64], f: int) -> NDArray[np.float64]:
    """Return the middle of each row, or the mean of the two middle values.

    ordered: [coordinates, devices], ascending
    counts: number of values at the start of each row
    """
    low, high = (
        np.take_along_axis(ordered, place[:, None], axis=1)[:, 0].astype(np.float64)
        for place in ((counts - 1) // 2, counts // 2)
    )
    return (low + high) / 2


MEDIAN = Rule(
    name="median",
    help="the median of each coordinate",
    compares="coordinate",
    needed=majority,
    promises="between",
    combine=lambda kept, tensors, f: per_coordinate(kept, tensors, f, median),
)
