"""HeteroFL: Diao, Ding and Tarokh, Computation and Communication Efficient Federated Learning for
Heterogeneous Clients (arXiv 2010.01264).

Against FedAvg: devices hold the leading channels at one of five rates; the mean over the devices
that hold a coordinate is uniform (the authors' code counts devices, not examples); of the tensors
that have a row per class a device contributes the rows of its own classes only, so that the row of
a class that nobody has stays; logits of absent classes are set to 0 in training; a Scaler divides
by the rate before each norm in training; batch norm is static.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from federated.engine.aggregate import Part
from federated.method import Method, Settings, State, varied
from federated.methods.common.inactive import one_size
from federated.methods.fedavg import fedavg, parts, proposal, recipe
from federated.task import Recipe, Update
from models.families.catalogue import labelled
from models.slicing import Plan
from models.submodel import Network, Submodel

__all__ = ["heterofl", "own_rows"]

FEATURES = ("scaler",)
RATES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def own_rows(part: Part, labels: list[int], outputs: int) -> Part:
    """The part with weight only in the rows (axis 0, classes) that a device holds examples of, and
    in those that stand for no class.
    """
    rows = torch.arange(*part.where[0])
    held: Tensor = torch.isin(rows, torch.tensor(labels, dtype=torch.long)) | (rows >= outputs)
    return replace(part, weight=part.weight * held.double())


def own_parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    classes, labels = labelled(plan.submodel), update.notes.get("labels")
    for part in parts(state, plan, update):
        yield (
            part
            if part.home not in classes or labels is None
            else own_rows(part, list(labels), plan.submodel.network.outputs)
        )


def own_recipe(state: State, submodel: Submodel) -> Recipe:
    """FedAvg's, with the classes of the device in its updates: they say which rows are its own."""
    return replace(recipe(state, submodel), labels=submodel.network.objective != "value")


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    return proposal(network, settings, FEATURES)


def heterofl() -> Method:
    base = fedavg()
    # the authors', for CIFAR-10
    recipe = {"epochs": 5, "batch": 10, "lr": 0.1, "decay": 5e-4, "clip": 1.0, "masked": True}
    return replace(
        base,
        name="heterofl",
        summary="narrower copies for smaller devices; each weight is the mean over the devices "
        "that hold it",
        paper="Diao, Ding and Tarokh, HeteroFL, ICLR 2021 (arXiv 2010.01264)",
        settings=varied(
            base.settings, widths=RATES, weighting="uniform", norm="static", sharing=None, **recipe
        ),
        features=FEATURES,
        forbids={
            "private": "which classes a device holds goes out as it is, and says which rows are "
            "divided by what"
        },
        menu=propose,
        recipe=own_recipe,
        parts=own_parts,
        inactive=one_size,
    )
