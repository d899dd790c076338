"""Draw at random the agents that train in a round, and compute how many of them it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coordinator.settings.config_tables import Fleet

__all__ = ["count_needed", "count_wanted", "draw_names", "make_generator"]


def make_generator(seed: int, *purpose: int) -> np.random.Generator:
    """Return a random generator for one purpose. Each purpose has its own, so that a run that
    resumes after a crash draws as if it had not crashed.
    """
    # of the same numbers as a list, numpy makes the same generator, but more slowly
    return np.random.default_rng(np.array([seed & 0xFFFFFFFF, *purpose], np.uint32))


def count_needed(names: int, fraction: float) -> int:
    """Return how many of `names` agents a round needs: the fraction rounded down, at least 1
    (FedAvg, Algorithm 1); 0 if there are no agents.
    """
    return max(1, math.floor(round(fraction * names, 9))) if names else 0


def count_wanted(fleet: Fleet, able: int) -> tuple[int, int]:
    """Return how many updates close a round (without a quorum) and how many agents train at a time.

    able: agents that can train.
    A sync round asks a fraction `over` more agents than it needs, rounded up (over-selection:
    Bonawitz et al., Towards Federated Learning at Scale, arXiv 1902.01046). A buffered round closes
    with `buffer` updates, or half as many as there are agents training.
    """
    needed = count_needed(able, fleet.fraction)
    wanted = min(able, math.ceil(round(needed * (1 + fleet.over), 9)))
    return (
        (needed, wanted)
        if fleet.mode == "sync"
        else (fleet.buffer or max(1, math.ceil(wanted / 2)), wanted)
    )


def draw_names(names: Sequence[str], asked: int, rng: np.random.Generator) -> list[str]:
    """Return `asked` of the names, or all if there are fewer, drawn without replacement and
    sorted.
    """
    if not names:
        return []
    return sorted(rng.choice(sorted(names), size=min(asked, len(names)), replace=False).tolist())
