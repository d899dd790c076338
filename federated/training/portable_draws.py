"""Random draws that every language repeats bit for bit: Philox4x32-10 (Salmon et al., Parallel
Random Numbers: As Easy as 1, 2, 3, SC 2011), which needs only multiplications of 32-bit words.

A draw is a list of words. Its key is a seed of 64 bits (low word first); block i of four words
encrypts the counter (i, index, purpose, number). An order of n examples is the stable argsort of n
words; a number below 1 is a word over 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["HIDDEN", "MASK", "ORDER", "Draws", "encrypt"]

ROUNDS = 10
MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
BUMPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

ORDER, HIDDEN, MASK = 0, 1, 2  # purposes: examples of a pass, tokens and masks of a step


def encrypt(counters: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Return the four words of each counter [n, 4]."""
    a, b, c, d = counters.astype(np.uint64).T
    first, second = key
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (
            (right >> np.uint64(32)) ^ b ^ np.uint64(first),
            right & np.uint64(WORD),
            (left >> np.uint64(32)) ^ d ^ np.uint64(second),
            left & np.uint64(WORD),
        )
        first, second = (first + BUMPS[0]) & WORD, (second + BUMPS[1]) & WORD
    return np.stack([a, b, c, d], 1).astype(np.uint32)


@dataclass(frozen=True)
class Draws:
    """All draws of a task. seed: 0 to 2^64 - 1."""

    seed: int

    def words(self, count: int, purpose: int, index: int, number: int = 0) -> NDArray[np.uint32]:
        """Return random words. index: of the pass or step; number: of the draw in it."""
        counters = np.zeros((-(-count // 4), 4), np.uint32)
        counters[:, 0] = np.arange(len(counters))
        counters[:, 1:] = index, purpose, number
        return encrypt(counters, (self.seed & WORD, self.seed >> 32)).reshape(-1)[:count]

    def order(self, examples: int, index: int) -> NDArray[np.int64]:
        """Return the order of the examples in a pass."""
        return np.argsort(self.words(examples, ORDER, index), kind="stable")

    def below(
        self, limit: float, shape: Sequence[int], purpose: int, index: int, number: int = 0
    ) -> NDArray[np.bool_]:
        """Return True with a probability, for each place of a shape."""
        words = self.words(math.prod(shape), purpose, index, number)
        return (words < limit * 2.0**32).reshape(shape)
