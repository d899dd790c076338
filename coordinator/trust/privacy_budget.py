"""The privacy accountant: what the results of a run's rounds have told of any one device, as
epsilon at a delta.

A device whose change counted in a round's sum, with noise of z times the bound on a change, is in
one Gaussian mechanism of multiplier z; one whose changes counted twice in a sum, in one of z / 2.
Through several such results a device is in one of multiplier 1 / sqrt(sum of 1 / z^2), which is
exact for Gaussians (Dong, Roth and Su, Gaussian Differential Privacy, arXiv 1905.02383, section
3.2), and its epsilon is that of Balle and Wang (arXiv 1805.06530, theorem 8). What is told is the
worst device's.

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

__all__ = ["costs", "epsilon", "more"]

# Relative; more than the sums below can be wrong by. It is added to them, so that rounding never
# makes epsilon too small.
ROUNDING = 1e-14


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
    worst = max(spent.values(), default=0.0)
    return gaussian_epsilon(math.sqrt(worst), delta) if worst else 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon for which a Gaussian mechanism is (epsilon, delta)-private.

    mu: sensitivity divided by the standard deviation of the noise, above 0.
    delta: above 0, below 1.
    """
    wanted = math.log(delta)
    if log_delta(0.0, mu) <= wanted:
        return 0.0
    # Here a = sqrt(-2 log delta) in `log_delta`, and delta(high) < Phi(-a) <= exp(-a^2 / 2) / 2.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * wanted)
    while low < (middle := (low + high) / 2) < high:  # until they are neighbouring numbers
        if log_delta(middle, mu) > wanted:
            low = middle
        else:
            high = middle
    return high * (1 + ROUNDING)


def log_delta(epsilon: float, mu: float) -> float:
    """Return log delta(epsilon) of the Gaussian mechanism (Balle and Wang, equation 6):

    delta = Phi(-a) - e^epsilon Phi(-b),    a = epsilon / mu - mu / 2,    b = epsilon / mu + mu / 2

    Since e^epsilon phi(b) = phi(a), delta = phi(a) (R(a) - R(b)) with the Mills ratio R: the tails,
    which would underflow, cancel.
    """
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if a < 0:
        tail = math.erfc(a / math.sqrt(2)) / 2
        return math.log(tail - density(a) * mills_ratio(b) + ROUNDING * tail)
    ratio = mills_ratio(a)
    difference = ratio - mills_ratio(b) + ROUNDING * ratio
    return math.log(difference) - a * a / 2 - math.log(2 * math.pi) / 2


def density(x: float) -> float:
    """Return phi(x), the density of the standard normal distribution."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def mills_ratio(x: float) -> float:
    """Return Phi(-x) / phi(x) for x >= 0."""
    if x < 5:
        return math.erfc(x / math.sqrt(2)) / 2 / density(x)
    # Laplace's continued fraction 1 / (x + 1 / (x + 2 / (x + ...))); at 5, 50 terms are exact.
    ratio = x
    for k in range(50, 0, -1):
        ratio = x + k / ratio
    return 1 / ratio
