"""Which agents are asked in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coordinator.settings.tables import Fleet

__all__ = ["count", "generator", "select", "wants"]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Randomness of its own for each purpose, so that a run repeats and goes on after a crash as if
    there had been none.
    """
    return np.random.default_rng([seed & 0xFFFFFFFF, *purpose])


def count(names: int, fraction: float) -> int:
    """How many of so many agents a round needs: max(1, fraction of them, rounded down) (FedAvg,
    Algorithm 1); none of none.
    """
    return max(1, math.floor(round(fraction * names, 9))) if names else 0


def wants(fleet: Fleet, able: int) -> tuple[int, int]:
    """Of so many agents that can train, how many updates close a round before any quorum, and how
    many are to be at work.

    Where a round waits for its agents, a share `over` of the needed more are asked, rounded up
    (over-selection: Bonawitz et al., Towards Federated Learning at Scale, arXiv 1902.01046). Where
    none waits, `buffer` updates close it, or half as many as are at work.
    """
    needed = count(able, fleet.fraction)
    wanted = min(able, math.ceil(round(needed * (1 + fleet.over), 9)))
    return (
        (needed, wanted)
        if fleet.mode == "sync"
        else (fleet.buffer or max(1, math.ceil(wanted / 2)), wanted)
    )


def select(names: Sequence[str], asked: int, rng: np.random.Generator) -> list[str]:
    """So many of the agents, or all where there are fewer, drawn without replacement, in order of
    name.
    """
    return (
        sorted(rng.choice(sorted(names), size=min(asked, len(names)), replace=False).tolist())
        if names
        else []
    )
