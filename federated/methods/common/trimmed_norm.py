"""Compute the norm of a layer without its largest entries, with one partition (FedFA, Park and
Joe-Wong, arXiv 2406.09877, Algorithm 1, line 12).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.sums_of_squares import sum_squares

__all__ = ["central_norm"]

FRACTION = 0.95  # of the entries, smallest first, that count
# guessed rank of the upper entries, sample size of the guess, least size of a tensor for it
GUESS, SAMPLE, LARGE = 0.93, 1 << 12, 1 << 16
SHARE = 1 / 16  # least share of the energy below the guess: a difference of sums is exact enough
BLOCK = 1 << 15  # entries that the processor caches


def central_norm(tensor: Tensor, scaling: str) -> float:
    """Return the norm of the entries up to the 95th percentile of the absolute values (linear
    interpolation, inclusive).

    scaling: "l2", or "rms" to divide by the square root of the number of entries

    No interpolation is needed: of the entries above the percentile's lower rank, only those equal
    to the entry at that rank count, so one partition suffices.
    """
    values: NDArray[np.float32] = tensor.detach().numpy().reshape(-1)
    rank = math.floor(round(FRACTION * (values.size - 1), 9))
    top, sure = split(values, rank)
    rank -= values.size - top.size
    top.partition(rank)
    ties = int(np.count_nonzero(top[rank + 1 :] == top[rank]))
    square = sure + sum_squares(top[: rank + 1]) + ties * float(top[rank]) ** 2
    return (
        math.sqrt(square / (values.size - top.size + rank + 1 + ties))
        if scaling == "rms"
        else math.sqrt(square)
    )


def split(values: NDArray[np.float32], rank: int) -> tuple[NDArray[np.float32], float]:
    """Return the absolute values of the upper entries, which include that of this rank, and the
    energy of the entries below.

    A regular sample guesses where the upper entries begin, which saves the partition nine tenths of
    a large tensor. If the guess is wrong, or a few entries have nearly all of the energy, return
    all entries.
    """
    if values.size >= LARGE:
        sample = np.abs(values[:: values.size // SAMPLE])
        floor = np.partition(sample, int(GUESS * sample.size))[int(GUESS * sample.size)]
        sizes, upper = np.empty(BLOCK, np.float32), list[NDArray[np.float32]]()
        for start in range(0, values.size, BLOCK):
            block = values[start : start + BLOCK]
            part = np.abs(block, out=sizes[: block.size])
            upper.append(part.take(np.flatnonzero(part >= floor)))
        top = np.concatenate(upper)
        energy = sum_squares(values)
        below = energy - sum_squares(top)
        if values.size - top.size <= rank and below >= SHARE * energy:
            return top, below
    return np.abs(values), 0.0
