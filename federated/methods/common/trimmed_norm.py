"""Compute the norm of a layer without its largest entries, with one partition (FedFA, Park and
Joe-Wong, arXiv 2406.09877, Algorithm 1, line 12).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["central_norm"]

FRACTION = 0.95  # of the entries, smallest first, that count
# guessed rank of the upper entries, sample size of the guess, least size of a tensor for it
GUESS, SAMPLE, LARGE = 0.93, 1 << 12, 1 << 16
BLOCK = 1 << 16  # entries summed in float32


def central_norm(tensor: Tensor, scaling: str) -> float:
    """Return the norm of the entries up to the 95th percentile of the absolute values (linear
    interpolation, inclusive).

    scaling: "l2", or "rms" to divide by the square root of the number of entries

    No interpolation is needed: of the entries above the percentile's lower rank, only those equal
    to the entry at that rank count, so one partition suffices.
    """
    sizes: NDArray[np.float32] = np.abs(tensor.detach().numpy().reshape(-1))
    rank = math.floor(round(FRACTION * (sizes.size - 1), 9))
    top, sure = split(sizes, rank)
    rank -= sizes.size - top.size
    top.partition(rank)
    ties = int(np.count_nonzero(top[rank + 1 :] == top[rank]))
    square = sure + sum_squares(top[: rank + 1]) + ties * float(top[rank]) ** 2
    return (
        math.sqrt(square / (sizes.size - top.size + rank + 1 + ties))
        if scaling == "rms"
        else math.sqrt(square)
    )


def split(sizes: NDArray[np.float32], rank: int) -> tuple[NDArray[np.float32], float]:
    """Return the upper entries, which include that of this rank, and the energy of the entries
    below. Overwrite `sizes`.

    A regular sample guesses where the upper entries begin, which saves the partition nine tenths of
    a large tensor. If the guess is wrong, return all entries.
    """
    if sizes.size >= LARGE:
        sample = sizes[:: sizes.size // SAMPLE]
        floor = np.partition(sample, int(GUESS * sample.size))[int(GUESS * sample.size)]
        upper = sizes >= floor
        if sizes.size - np.count_nonzero(upper) <= rank:
            top = sizes[upper]
            sizes[upper] = 0
            return top, sum_squares(sizes)
    return sizes, 0.0


def sum_squares(values: NDArray[np.float32]) -> float:
    """Return the sum of squares, in float32 per block and float64 over blocks, or in float64
    throughout if a block would overflow.
    """
    with np.errstate(over="ignore"):
        total = sum(
            float(np.dot(block, block))
            for block in np.array_split(values, 1 + values.size // BLOCK)
        )
    return total if math.isfinite(total) else float(np.square(values, dtype=np.float64).sum())
