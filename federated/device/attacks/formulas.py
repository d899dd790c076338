"""Formulas of attacks: what a malicious device sends instead of its honest change of the weights.

A change is a vector of float32 [d]: all trained weights minus those received. Each formula takes
the changes that the device can compute from its own data, and a strength.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from federated.training.training_inputs import Array

__all__ = [
    "Changes",
    "deviate_a_little",
    "flip_sign",
    "hide_within_bounds",
    "maximise_within_spread",
    "oppose_mean",
    "plant_backdoor",
    "replace_with_shuffled",
    "scale_up",
]


@dataclass(frozen=True)
class Changes:
    """The changes that a malicious device computes, each a vector [d] of the same start.

    honest: by training on its own data.
    shuffled: by training on its own data with shuffled labels; empty unless the attack uses it.
    resampled: by trainings on random samples of its own data; empty unless the attack uses them.
        The papers take the changes of other devices, which no device of a fleet sees.
    """

    honest: Array
    shuffled: Array
    resampled: Sequence[Array] = ()

    @property
    def mean(self) -> Array:
        """Mean of the resampled changes [d]."""
        mean: Array = np.mean(self.resampled, axis=0)
        return mean

    @property
    def deviation(self) -> Array:
        """Standard deviation of the resampled changes at each coordinate [d]."""
        deviation: Array = np.std(self.resampled, axis=0)
        return deviation


def flip_sign(changes: Changes, strength: float) -> Array:
    """Return -strength * honest (sign flipping; Li and others, RSA, AAAI 2019,
    arXiv 1811.03761).
    """
    return -strength * changes.honest


def scale_up(changes: Changes, strength: float) -> Array:
    """Return strength * honest (scaling as in model replacement; Bagdasaryan and others, How To
    Backdoor Federated Learning, AISTATS 2020, section 4.2).
    """
    return strength * changes.honest


def replace_with_shuffled(changes: Changes, strength: float) -> Array:
    """Return strength * shuffled (poisoned labels; Tolpegin and others, Data Poisoning Attacks
    Against Federated Learning Systems, ESORICS 2020).
    """
    return strength * changes.shuffled


def plant_backdoor(changes: Changes, strength: float) -> Array:
    """Return honest + strength * shuffled (FedFA, arXiv 2406.09877, Eq. 1, where the strength is
    lambda and the backdoor is trained on shuffled labels).
    """
    return changes.honest + strength * changes.shuffled


def hide_within_bounds(changes: Changes, strength: float) -> Array:
    """Return the backdoor, shortened to the norm of the honest change if it is longer, so that no
    bound on norms rejects it (Sun and others, Can You Really Backdoor Federated Learning?,
    arXiv 1911.07963, section 3).
    """
    backdoor = plant_backdoor(changes, strength)
    norm, most = np.linalg.norm(backdoor), np.linalg.norm(changes.honest)
    return backdoor * (most / norm) if norm > most else backdoor


def deviate_a_little(changes: Changes, strength: float) -> Array:
    """Return mean - strength * deviation (Baruch and others, A Little Is Enough, NeurIPS 2019,
    arXiv 1902.06156, Algorithm 3, where the strength is z).
    """
    return changes.mean - strength * changes.deviation


def oppose_mean(changes: Changes, strength: float) -> Array:
    """Return -strength * mean, whose inner product with the honest mean is negative (Xie and
    others, Fall of Empires, UAI 2019, arXiv 1903.03936, where the strength is epsilon).
    """
    return -strength * changes.mean


def maximise_within_spread(changes: Changes, strength: float) -> Array:
    """Return mean - strength * gamma * deviation with the largest gamma for which it is no farther
    from any change than two changes are from each other (min-max; Shejwalkar and Houmansadr,
    Manipulating the Byzantine, NDSS 2021, Eq. 8 with the inverse standard deviation).

    With p = -deviation and a change c, |mean + gamma p - c|^2 = spread^2 is quadratic in gamma.
    """
    found, mean, push = changes.resampled, changes.mean, -changes.deviation
    spread = max(float(np.sum((one - other) ** 2)) for one in found for other in found)
    square = float(push @ push)
    if not square:
        return mean
    gammas = []
    for one in found:
        away = mean - one
        half = float(push @ away)
        rest = float(away @ away) - spread  # at most 0, since the mean lies between the changes
        gammas.append((-half + np.sqrt(max(half * half - square * rest, 0.0))) / square)
    return mean + np.float32(strength * min(gammas)) * push
