"""Which agents are asked in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["count", "generator", "select"]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Randomness of its own for each purpose, so that a run repeats and goes on after a crash as if there had been none."""
    return np.random.default_rng([seed & 0xFFFFFFFF, *purpose])


def count(names: int, fraction: float) -> int:
    """How many of so many agents a round needs: max(1, fraction of them, rounded down) (FedAvg, Algorithm 1); none of none."""
    return max(1, math.floor(round(fraction * names, 9))) if names else 0


def select(names: Sequence[str], fraction: float, rng: np.random.Generator, over: float = 0.0) -> list[str]:
    """The agents that are asked, drawn without replacement, in order of name: as many as are needed, and `over` of that number more, rounded up.

    The round closes when the needed ones have come (Bonawitz et al., Towards Federated Learning at Scale, arXiv 1902.01046).
    """
    asked = min(len(names), math.ceil(round(count(len(names), fraction) * (1 + over), 9)))
    return sorted(rng.choice(sorted(names), size=asked, replace=False).tolist()) if names else []
