"""Add up the squares of an array, or of its difference from another one, in one pass through the
processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sum_squares", "sum_squares_each"]

BLOCK = 1 << 14  # entries that are summed in float32, and that the processor caches
QUIET = partial(np.errstate, over="ignore", invalid="ignore")
NOTHING: Mapping[str, NDArray[Any]] = {}


def sum_squares(values: NDArray[Any], minus: NDArray[Any] | None = None) -> float:
    """Return the sum of squares, in float32 per block and float64 over blocks, or in float64
    throughout if a block would overflow. NaN or infinite if an entry is.

    minus: what to subtract first, an array of the same shape
    """
    with QUIET():
        return _add_all(values, minus)


def sum_squares_each(
    values: Mapping[str, NDArray[Any]], minus: Mapping[str, NDArray[Any]] = NOTHING
) -> dict[str, float]:
    """Return the sum of squares of each array, as `sum_squares` does. minus: what to subtract from
    those of the same names.
    """
    with QUIET():  # once, since it takes longer than the sums of a small network
        return {name: _add_all(value, minus.get(name)) for name, value in values.items()}


def _add_all(values: NDArray[Any], minus: NDArray[Any] | None) -> float:
    if values.size <= BLOCK:
        flat = values if minus is None else np.subtract(values, minus, dtype=values.dtype)
        flat = flat.reshape(-1)
        total = float(np.dot(flat, flat))
    else:
        total = _add_blocks(values, minus)
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
