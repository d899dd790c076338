"""The privacy accountant: what the results of a run's rounds have told of any one device, as
epsilon at a delta.

A device whose change counted in a round's sum, with noise of z times the bound on a change, is in
one Gaussian mechanism of multiplier z; one whose changes counted twice in a sum, in one of z / 2.
Through several such results a device is in one of multiplier 1 / sqrt(sum of 1 / z^2), which is
exact for Gaussians (Dong, Roth and Su, Gaussian Differential Privacy, arXiv 1905.02383, section
3.2), and its epsilon is that of Balle and Wang (arXiv 1805.06530), as Google's dp-accounting
computes it. What is told is the worst device's.

Nothing is gained by rounds that ask a part of the fleet alone, beyond that the others' budgets
stay: amplification by sampling holds for a draw that nobody knows. Here devices know when they are
asked, the draw follows the run's seed, the quick and the large are asked in place of the lost, and
which coordinates of nested submodels a round touched shows who was in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from federated.engine.aggregate import Key
from federated.errors import MissingExtra

__all__ = ["check_installed", "costs", "epsilon", "more"]


def check_installed() -> None:
    """Raises MissingExtra, before a run is under way."""
    try:
        import dp_accounting  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("a private run", "private", "dp-accounting") from error


def costs(keys: Iterable[Key], noise: float) -> dict[str, float]:
    """(times / noise)^2 by agent, of the updates in one sum. keys: of the fold, whose first is the
    agent. noise: times the bound on a change.
    """
    return {
        agent: (times / noise) ** 2 for agent, times in Counter(str(key[0]) for key in keys).items()
    }


def more(spent: Mapping[str, float], noise: float) -> dict[str, float]:
    """What will have been spent if every device that has spent anything is in one more sum; of
    nobody, if one is.
    """
    return {agent: cost + noise**-2 for agent, cost in spent.items()} or {"": noise**-2}


def epsilon(spent: Mapping[str, float], delta: float) -> float:
    """Of the device of which most was told. spent: sums of costs by agent; 0 where nothing was told
    of anyone.
    """
    from dp_accounting import get_epsilon_gaussian

    worst = max(spent.values(), default=0.0)
    return float(get_epsilon_gaussian(1 / math.sqrt(worst), delta)) if worst else 0.0
