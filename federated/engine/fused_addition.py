"""Add several updates to a piece of a sum in one pass over memory, with functions that numba
compiles (extra `fast`).

PyTorch adds one update at a time, and reads and writes the sum each time. Both round alike: one
multiply-add per entry and update, in the order of the updates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import util
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["LEAST", "Fused", "add_fused", "is_installed", "load_fused"]

log = logging.getLogger(__name__)

LEAST = 1 << 20  # entries of an update; PyTorch adds smaller ones
PROBE = 1000  # entries whose bits are compared with PyTorch's; not a multiple of a vector

Fused = tuple[Callable[..., None], Callable[..., None]]
"""Functions that add two and four updates to a sum."""


def add_two(total: Any, values: Any, factors: Any) -> None:
    a, b = values
    f, g = factors
    for i in range(total.size):
        total[i] = (total[i] + f * a[i]) + g * b[i]


def add_four(total: Any, values: Any, factors: Any) -> None:
    a, b, c, d = values
    f, g, h, k = factors
    for i in range(total.size):
        total[i] = (((total[i] + f * a[i]) + g * b[i]) + h * c[i]) + k * d[i]


def is_installed() -> bool:
    """Return True if numba is installed, without importing it."""
    return util.find_spec("numba") is not None


@lru_cache(maxsize=1)
def load_fused() -> Fused | None:
    """Compile the functions, which takes about a second. Return None if numba is not installed, or
    if its bits differ from PyTorch's on this processor.
    """
    try:
        from numba import njit
    except ImportError:
        return None
    compile_one = njit(nogil=True, fastmath={"contract"})
    fused: Fused = compile_one(add_two), compile_one(add_four)
    rows = torch.randn(8, PROBE, generator=torch.Generator().manual_seed(0))
    expected, found = rows[0].clone(), rows[0].clone()
    for index, row in enumerate(rows[1:]):
        expected.add_(row, alpha=0.3 + index)
    add_fused(fused, found, list(rows[1:]), [0.3 + index for index in range(7)])
    if not torch.equal(expected, found):
        log.warning("numba rounds differently from PyTorch on this processor and is not used")
        return None
    return fused


def add_fused(
    fused: Fused, total: Tensor, values: Sequence[Tensor], factors: Sequence[float]
) -> None:
    """Add values times factors to a sum. All are float32 vectors of the same length."""
    two, four = fused
    arrays, numbers = [one.numpy() for one in values], [np.float32(one) for one in factors]
    done, out = 0, total.numpy()
    while (left := len(arrays) - done) > 1:
        count, add = (4, four) if left >= 4 else (2, two)
        add(out, tuple(arrays[done : done + count]), tuple(numbers[done : done + count]))
        done += count
    if left:
        total.add_(values[done], alpha=factors[done])
