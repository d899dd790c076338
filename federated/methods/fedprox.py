"""FedProx: pull each device's weights towards the received ones while it trains (Li et al.,
Federated Optimization in Heterogeneous Networks, arXiv 1812.06127, equation 2 and Algorithm 2).

Difference from FedAvg: a device minimises

    F_c(w) + mu/2 ||w - w_t||^2

over its trainable parameters, where w_t are the received weights of its own submodel: mu (w - w_t)
is added to each gradient. Running statistics are not pulled. The aggregation is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.inactive_mechanisms import one_step
from federated.methods.fedavg import fedavg, recipe
from federated.task import Recipe
from models.submodel import Submodel

__all__ = ["fedprox", "pull_recipe"]


def pull_recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe with the proximal term, weighted by the setting `mu`."""
    return replace(recipe(state, submodel), pull=float(state.settings["mu"]))


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["mu"] == 0:
        yield (
            "mu = 0 does not pull devices back to the received weights: set method.mu above 0, "
            "such as 0.01"
        )
    yield from one_step(
        menu,
        settings,
        effect="takes no step away from the received weights, so nothing is pulled back",
    )


def fedprox() -> Method:
    base = fedavg()
    return replace(
        base,
        name="fedprox",
        summary="FedAvg with a proximal term that pulls each device towards the received weights",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (arXiv "
        "1812.06127)",
        settings=vary(
            base.settings,
            mu=Setting(0.01, "weight of the proximal term", least=0),
        ),
        recipe=pull_recipe,
        inactive=inactive,
    )
