"""HeteroFL: devices train the leading channels of every layer, at one of five widths (Diao, Ding
and Tarokh, Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
arXiv 2010.01264).

Difference from FedAvg: devices hold the leading channels at one of five rates. The mean over the
devices that hold a coordinate is uniform (the authors' code counts devices, not examples). A device
contributes only the rows of its own classes to tensors with a row per class, so the row of a class
without devices keeps its value. Logits of absent classes are set to 0 in training. A Scaler divides
by the rate before each norm in training. Batch norm is static. With `rates = "dynamic"` each device
gets another rate at random in every round (section 4.1), among those that it can afford.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.update_contributions import RowParts
from federated.method import Method, Setting, State, vary
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.width_depth_submodels import assign, propose_sizes
from federated.methods.fedavg import fedavg, parts, recipe
from federated.task import Profile, Recipe, Update
from models.slicing import Plan, Row
from models.submodel import Submodel
from models.submodel_building import find_labelled

__all__ = ["heterofl", "own_recipe", "split_head"]

FEATURES = ("scaler",)
RATES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def own_rows(row: Row, weight: float, labels: Sequence[int], outputs: int) -> Tensor:
    """Return the weights of a row's classes (axis 0): 0 for those of which a device has no
    examples. What stands for no class keeps its weight.
    """
    rows = torch.arange(*row.there[0])
    held: Tensor = torch.isin(rows, torch.tensor(labels, dtype=torch.long)) | (rows >= outputs)
    return weight * held.double()


def split_head(found: RowParts, submodel: Submodel, update: Update) -> RowParts:
    """Return the parts with only the device's own rows of tensors with a row per class."""
    classes, labels = find_labelled(submodel), update.notes.get("labels")
    if labels is None:
        return found
    own = {
        row.local: replace(
            terms := found.own.get(row.local, found.terms),
            weight=own_rows(row, float(terms.weight), list(labels), submodel.network.outputs),
        )
        for row in found.rows
        if row.home in classes
    }
    return replace(found, own={**found.own, **own})


def own_parts(state: State, plan: Plan, update: Update) -> RowParts:
    """Return FedAvg's parts; of tensors with a row per class, only the device's own rows count."""
    return split_head(parts(state, plan, update), plan.submodel, update)


def own_recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe; updates name the classes of the device, which are its own rows."""
    return replace(recipe(state, submodel), labels=submodel.network.objective != "value")


def choose(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the largest submodel, or under dynamic rates any with the same probability."""
    if state.settings["rates"] == "dynamic":
        return affordable[int(rng.integers(len(affordable)))]
    return assign(state, profile, affordable, rng)


def heterofl() -> Method:
    base = fedavg()
    # the authors' values for CIFAR-10
    recipe = {"epochs": 5, "batch": 10, "lr": 0.1, "decay": 5e-4, "clip": 1.0, "masked": True}
    return replace(
        base,
        name="heterofl",
        summary="narrower submodels for weaker devices; each weight is the mean over the devices "
        "that hold it",
        paper="Diao, Ding and Tarokh, HeteroFL, ICLR 2021 (arXiv 2010.01264)",
        settings=vary(
            base.settings,
            widths=RATES,
            weighting="uniform",
            norm="static",
            sharing=None,
            rates=Setting(
                "fixed",
                "submodel of a device: the largest that it can train (fixed), or a random one in "
                "each round (dynamic)",
                ("fixed", "dynamic"),
            ),
            **recipe,
        ),
        features=FEATURES,
        forbids={
            "private": "devices report their classes without noise, and the aggregation uses them "
            "to divide each row"
        },
        menu=partial(propose_sizes, features=FEATURES),
        assign=choose,
        recipe=own_recipe,
        parts=own_parts,
        inactive=one_size,
    )
