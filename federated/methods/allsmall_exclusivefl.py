"""AllSmall and ExclusiveFL, two baselines in which submodels of different sizes share nothing:
FedAvg of the smallest submodel on every device, and FedAvg separately for each submodel.

Both are baselines of RecipFL (Zhang et al., How Few Davids Improve One Goliath, WWW 2024, doi
10.1145/3589334.3645544), without papers of their own. InclusiveFL calls AllSmall a small model to
fit all clients (Liu et al., No One Left Behind, arXiv 2202.08036). ExclusiveFL is FedAvg (McMahan
et al., arXiv 1602.05629) with `sharing = "architecture"`: a submodel with one device is trained by
that device alone. The default widths are RecipFL's two, and the smaller one keeps a fifth of the
channels. With `models`, weaker devices train networks of other families, each of which starts from
random weights of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from federated.method import Method, Setting, Settings, State, Tensors, vary
from federated.methods import fedavg as base
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.other_networks import MODELS, propose_networks
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.runtime.extension_errors import explain_lookup
from federated.task import Profile
from models.families.catalogue import POINT
from models.slicing import Plan, Row, corner
from models.submodel import Network, Submodel
from models.submodel_building import full, initial

__all__ = ["allsmall", "exclusivefl"]

WIDTHS = (0.2, 1.0)


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return other networks and the run's own, or FedAvg's menu."""
    if not settings["models"]:
        return propose_sizes(network, settings)
    with explain_lookup(POINT):
        return propose_networks(network, settings["models"])


def propose_smallest(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return the smallest submodel of the menu."""
    return propose(network, settings)[:1]


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return FedAvg's state, with a home for each tensor of each other network."""
    own = [submodel for submodel in submodels if not submodel.network.label]
    homes = dict(base.start(tensors, own, settings).tensors) if own else dict[str, Tensor]()
    for submodel in submodels:
        if submodel.network.label:
            drawn = initial(submodel.network, settings["seed"])
            for name in base.list_sent(submodel, settings):
                homes[f"{name}@{submodel.plain.name}"] = drawn[name]
    return State(0, homes, settings, menu=tuple(submodels))


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the last submodel of the menu that the device can afford."""
    return max(affordable, key=state.menu.index)


def place(state: State, submodel: Submodel) -> Plan:
    """Return FedAvg's plan, or the homes of another network."""
    if not submodel.network.label:
        return base.place(state, submodel)
    rows = []
    for name, shape in base.list_sent(submodel, state.settings).items():
        where = corner(shape)
        rows.append(Row(name, where, f"{name}@{submodel.plain.name}", where, shape))
    return Plan(submodel, tuple(rows))


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield a reason if the smallest submodel is the run's whole network."""
    if menu[0] == full(menu[0].network) and not menu[0].network.label:
        yield (
            "the smallest submodel is the whole network, as under fedavg: set method.widths or "
            "method.depths to smaller sizes"
        )


def allsmall() -> Method:
    fedavg = base.fedavg()
    return replace(
        fedavg,
        name="allsmall",
        summary="FedAvg with the smallest submodel on every device",
        paper="a baseline of RecipFL (Zhang et al., WWW 2024) and InclusiveFL (Liu et al., arXiv "
        "2202.08036)",
        settings=vary(fedavg.settings, widths=WIDTHS, models=MODELS, sharing=None),
        menu=propose_smallest,
        start=start,
        place=place,
        inactive=inactive,
    )


def exclusivefl() -> Method:
    fedavg = base.fedavg()
    return replace(
        fedavg,
        name="exclusivefl",
        summary="FedAvg separately for each submodel; different submodels share nothing",
        paper="a baseline of RecipFL (Zhang et al., WWW 2024): McMahan et al. (arXiv 1602.05629) "
        "per architecture",
        settings=vary(
            fedavg.settings,
            widths=WIDTHS,
            models=MODELS,
            sharing=Setting(
                "architecture", "average over devices of the same submodel", ("architecture",)
            ),
        ),
        menu=propose,
        start=start,
        assign=assign,
        place=place,
        inactive=one_size,
    )
