"""Which size a FedFA device gets (Park and Joe-Wong, arXiv 2406.09877): the largest that it
affords, or the one that suits its data.

In the paper's search half of the devices take the smallest size, which `assign.submodels` of a run
can pin, and the others look for the one of highest ZiCo score on their own data, before any
training (see `federated.training.zico`). A menu is small, so each device scores all of it when it
joins. The score mostly rises with size: without a budget of multiply-adds the choice is nearly
always the largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from federated.method import Setting, State
from federated.methods.fedavg import assign
from federated.task import Profile
from models.cost import cost
from models.families.catalogue import full
from models.submodel import Submodel

__all__ = ["CHOICES", "choose"]

CHOICES: Mapping[str, Setting] = MappingProxyType(
    {
        "choice": Setting(
            "largest",
            "of the sizes that a device affords: the largest, or the one of best score on its data",
            ("largest", "zico"),
        ),
        "mac_budget": Setting(
            0.0,
            "most multiply-adds of a device's size, as a share of the whole network's; 0: any",
            least=0,
            most=1,
        ),
    }
)


def choose(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Within the budget, the best score, of equals the one with fewest multiply-adds; the largest,
    where it is asked for or nothing was scored.
    """
    within = allowed(affordable, state.settings["mac_budget"])
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


def allowed(affordable: Sequence[Submodel], budget: float) -> Sequence[Submodel]:
    """The submodels of at most so large a share of the whole network's multiply-adds, all for 0;
    the cheapest, where that allows none.
    """
    if budget <= 0:
        return affordable
    most = budget * cost(full(affordable[0].network, affordable[0].features)).macs
    return [s for s in affordable if cost(s).macs <= most] or [
        min(affordable, key=lambda s: cost(s).macs)
    ]
