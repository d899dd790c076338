"""Choose a FedFA device's size (Park and Joe-Wong, arXiv 2406.09877): the largest that it can
afford, or the one that suits its data.

In the paper's search, half of the devices take the smallest size (a run can pin them with
`assign.submodels`). The others search for the size with the highest ZiCo score on their own data,
before any training (`federated.training.zico_score`). A menu is small, so each device scores all of
it when it joins. The score mostly rises with size: without a budget of multiply-adds, the choice is
nearly always the largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from federated.method import Setting, State
from federated.methods.common.width_depth_submodels import assign
from federated.task import Profile
from models.cost import cost
from models.submodel import Submodel
from models.submodel_building import full

__all__ = ["CHOICES", "choose"]

CHOICES: Mapping[str, Setting] = {
    "choice": Setting(
        "largest",
        "which of the submodels that a device can train it gets: the largest, or the one with "
        "the best ZiCo score on its data",
        ("largest", "zico"),
    ),
    "mac_budget": Setting(
        0.0,
        "maximum multiply-adds of a submodel, as a fraction of the network's; 0: no limit",
        least=0,
        most=1,
    ),
}


def choose(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the submodel with the best score within the budget; among equal ones, that with the
    fewest multiply-adds. Return the largest if that is the setting or nothing was scored.
    """
    within = within_budget(affordable, state.settings["mac_budget"])
    found = (
        profile.survey.get("zico")
        if profile is not None and state.settings["choice"] == "zico"
        else None
    )
    scores = (
        {name: value for name, value in found.items() if isinstance(value, int | float)}
        if isinstance(found, dict)
        else {}
    )
    scored = [submodel for submodel in within if math.isfinite(scores.get(submodel.name, math.nan))]
    return (
        max(scored, key=lambda s: (scores[s.name], -cost(s).macs, s.name))
        if scored
        else assign(state, profile, within, rng)
    )


def within_budget(affordable: Sequence[Submodel], budget: float) -> Sequence[Submodel]:
    """Return the submodels with at most this fraction of the whole network's multiply-adds; all for
    0, the cheapest if none fits.
    """
    if budget <= 0:
        return affordable
    most = budget * cost(full(affordable[0].network, affordable[0].features)).macs
    return [s for s in affordable if cost(s).macs <= most] or [
        min(affordable, key=lambda s: cost(s).macs)
    ]
