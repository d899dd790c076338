"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (arXiv 1812.06127, equation
2 and Algorithm 2).

Against FedAvg, a device minimises

    F_c(w) + mu/2 ||w - w_t||^2

over its trainable parameters, w_t being the weights that it received, of its own submodel: each
gradient gains mu (w - w_t). Running statistics are not pulled. The coordinator does what FedAvg
does, so coordinates that few devices hold are only pulled by those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Setting, Settings, State, varied
from federated.methods.common.inactive import one_step
from federated.methods.fedavg import fedavg, recipe
from federated.task import Recipe
from models.submodel import Submodel

__all__ = ["fedprox"]


def pulled(state: State, submodel: Submodel) -> Recipe:
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
        summary="FedAvg whose devices are pulled back to the weights that they received",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (arXiv "
        "1812.06127)",
        settings=varied(
            base.settings, mu=Setting(0.01, "strength of the pull to the received weights", least=0)
        ),
        recipe=pulled,
        inactive=inactive,
    )
