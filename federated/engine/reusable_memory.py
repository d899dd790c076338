"""Lend the memory of the sums of an earlier round again once nobody uses it.

The system clears fresh memory page by page, which takes about as long as adding two updates.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["lend_memory"]

LEAST = 1 << 18  # entries; less memory is not kept
_idle: list[NDArray[np.float32]] = []  # at most one


def lend_memory(count: int) -> Tensor:
    """Return float32 [count] with any values. Its memory is kept when the last tensor in it is
    gone, until the next call, so that a process holds the memory of one model more between two
    rounds.

    numpy asks the system for large pages, which it hands out several times faster.
    """
    memory = _take(count)
    if memory is None:
        memory = np.empty(count, np.float32)
    loan = memory[:]  # which lives as long as a tensor in its memory
    if count >= LEAST:
        weakref.finalize(loan, _keep, memory).atexit = False
    return torch.from_numpy(loan)


def _take(count: int) -> NDArray[np.float32] | None:
    """Return the idle memory, if it has this size. Memory of another size is freed."""
    try:
        found = _idle.pop()
    except IndexError:
        return None
    return found if found.size == count else None


def _keep(memory: NDArray[np.float32]) -> None:
    _idle[:] = [memory]
