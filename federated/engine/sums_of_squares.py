"""Add up the squares of an array, or of its difference from another one, in one pass through the
processor's cache.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sum_squares"]

BLOCK = 1 << 14  # entries that are summed in float32, and that the processor caches


def sum_squares(values: NDArray[Any], minus: NDArray[Any] | None = None) -> float:
    """Return the sum of squares, in float32 per block and float64 over blocks, or in float64
    throughout if a block would overflow. NaN or infinite if an entry is.

    minus: what to subtract first, an array of the same shape
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = _add_blocks(np.atleast_1d(values), None if minus is None else np.atleast_1d(minus))
        if math.isfinite(total):
            return total
        wide = values.astype(np.float64) - (0.0 if minus is None else minus)
        return float(np.square(wide, out=wide).sum())


def _add_blocks(values: NDArray[Any], minus: NDArray[Any] | None) -> float:
    """Return the sum of squares, which is infinite if a block overflows."""
    row = math.prod(values.shape[1:])
    if row > BLOCK:
        return math.fsum(
            _add_blocks(one, None if minus is None else minus[index])
            for index, one in enumerate(values)
        )
    step, total = max(1, BLOCK // max(1, row)), 0.0
    room = np.empty((min(step, len(values)), *values.shape[1:]), values.dtype)
    for start in range(0, len(values), step):
        block = values[start : start + step]
        if minus is not None:
            block = np.subtract(block, minus[start : start + step], out=room[: len(block)])
        flat = block.reshape(-1)
        total += float(np.dot(flat, flat))
    return total
