"""Compute how much the results of a run's rounds reveal about any one device, as epsilon at a given
delta (privacy accounting).

A device whose change counts once in a round's sum, with noise of z times the bound on a change,
takes part in one Gaussian mechanism with multiplier z; if it counts twice, with multiplier z / 2.
Several such results compose to a mechanism with multiplier 1 / sqrt(sum of 1 / z^2), which is exact
for Gaussians (Dong, Roth and Su, Gaussian Differential Privacy, arXiv 1905.02383, section 3.2). Its
epsilon is that of Balle and Wang (arXiv 1805.06530), theorem 8. The
reported epsilon is that of the worst device.

Rounds that ask only a part of the fleet spare the budgets of the others, but gain nothing more:
amplification by sampling holds only for a secret draw. Here devices know when they are
asked, the draw follows the run's seed, fast and large devices replace lost ones, and the
coordinates of nested submodels that a round changed show who took part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from federated.engine.aggregate import Key

__all__ = ["add_round", "compute_costs", "compute_epsilon"]

# Bound of the relative rounding error of the sums below. It is added to them, so that rounding
# never makes epsilon too small.
ROUNDING = 1e-14


def compute_costs(keys: Iterable[Key], noise: float) -> dict[str, float]:
    """Return (times / noise)^2 by agent, where `times` is how often an agent counts in one sum.

    keys: of the updates in the sum; each begins with the agent. noise: multiplier of the bound on a
    change.
    """
    return {
        agent: (times / noise) ** 2 for agent, times in Counter(str(key[0]) for key in keys).items()
    }


def add_round(spent: Mapping[str, float], noise: float) -> dict[str, float]:
    """Return the costs after one more sum in which every device with any cost counts once; if there
    is none, those of a single device.
    """
    return {agent: cost + noise**-2 for agent, cost in spent.items()} or {"": noise**-2}


def compute_epsilon(spent: Mapping[str, float], delta: float) -> float:
    """Return the epsilon of the most exposed device; 0 if nothing was released. spent: sum of costs
    by agent.
    """
    worst = max(spent.values(), default=0.0)
    return compute_gaussian_epsilon(math.sqrt(worst), delta) if worst else 0.0


def compute_gaussian_epsilon(mu: float, delta: float) -> float:
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
    high *= 1 + ROUNDING
    while log_delta(high, mu) > wanted:  # neighbouring numbers may round in different directions
        high *= 1 + ROUNDING
    return high


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
