"""Which agents are asked in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["generator", "select"]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Randomness of its own for each purpose, so that a run repeats and goes on after a crash as if there had been none."""
    return np.random.default_rng([seed & 0xFFFFFFFF, *purpose])


def select(names: Sequence[str], fraction: float, rng: np.random.Generator) -> list[str]:
    """max(1, fraction of the names, rounded down) of them, drawn without replacement, in order of name (FedAvg, Algorithm 1)."""
    count = max(1, math.floor(round(fraction * len(names), 9)))
    return sorted(rng.choice(sorted(names), size=count, replace=False).tolist()) if names else []
