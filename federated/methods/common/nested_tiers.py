"""Choice of the NeFL submodel that a device trains in a round (arXiv 2308.07761).

In the paper (`tiers = "index"`), device i of N has tier t = min(i // (N / N_s), N_s - 1) of the N_s
submodels and draws from [t - 2, t + 2]. By default (`tiers = "measured"`), t is the largest
submodel that the device can afford, and the device follows a shuffled cycle of rounds: it trains
each of [t - 2, t] equally often, and all smaller ones together as often as one of these. If devices
drew from [t - 2, t] only, a fleet that can afford large submodels would never train the smallest
ones. Devices start at different places of the cycle, so two equal devices train all of five
submodels within four rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from federated.method import State
from models.families.catalogue import parameters
from models.submodel import Submodel

__all__ = ["by_cycle", "by_index"]


def by_index(
    state: State,
    place: int,
    affordable: Sequence[Submodel],
    rng: np.random.Generator,
) -> Submodel:
    """Return a submodel of the device's tier or near it, or the largest that it can afford if it
    can afford none of these.

    place: index of the device among the sorted names of present devices
    """
    flex: int = state.settings["flex"]
    tier = min(place * len(state.menu) // len(state.agents), len(state.menu) - 1)
    near = state.menu[max(0, tier - flex) : tier + flex + 1]
    able = [submodel for submodel in affordable if submodel in near]
    able = able or [max(affordable, key=parameters)]
    return able[int(rng.integers(len(able)))]


def by_cycle(
    state: State, place: int | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the submodel of this round in a cycle of all submodels that the device can afford.

    place: as in `by_index`; without one, draw a round of the cycle
    """
    flex: int = state.settings["flex"]
    able = sorted(affordable, key=lambda submodel: (parameters(submodel), submodel.name))
    smaller, near = able[: -1 - flex], able[-1 - flex :]
    cycle = [*smaller, *(near * max(1, len(smaller)))]
    if place is None:
        return cycle[int(rng.integers(len(cycle)))]
    number, step = divmod(state.round, len(cycle))
    order = np.random.default_rng([state.settings["seed"] & 0xFFFFFFFF, number]).permutation(
        len(cycle)
    )
    return cycle[int(order[(step + place * len(cycle) // len(state.agents)) % len(cycle)])]
