"""List the networks of different families that a run trains beside its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from federated.method import Setting
from federated.methods.common.exit_submodels import sort_menu
from models import named_network
from models.cost import cost
from models.submodel import Network, Submodel
from models.submodel_building import full, parameters

__all__ = ["MODELS", "propose_networks"]

MODELS = Setting(
    (),
    "networks of weaker devices; empty: smaller versions of the run's network",
    each=str,
)


LONGEST = 40  # characters of a label, which is a part of the name of a submodel


def make_label(model: str) -> str:
    """Return a name for the network of a model's name, such as a folder, which may be a part of
    topics and files.
    """
    label = re.sub(r"[^A-Za-z0-9_.-]", "_", model)
    if len(label) <= LONGEST:
        return label
    return f"{label[8 - LONGEST :]}{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def propose_networks(network: Network, models: Sequence[str]) -> tuple[Submodel, ...]:
    """Return the networks of these names by parameters, for the run's data, and last the run's own
    network, which belongs to the strong devices.

    Neither parameters nor multiply-adds alone show which network is larger: on 32x32 images VGG-16
    has fewer parameters than ResNet-101 but twice its multiply-adds, and RecipFL's poster calls it
    the larger one. So a network is rejected only if it exceeds the run's own in both.

    LookupError, ValueError: see `models.named_network.network`.
    ValueError: a network is larger than the run's own.
    """
    whole, made = full(network), list[Submodel]()
    for model in dict.fromkeys(models):
        other = named_network.network(
            model, network.inputs, network.outputs, network, network.target
        )
        made.append(full(replace(other, label=make_label(model))))
        if parameters(made[-1]) > parameters(whole) and cost(made[-1]).macs > cost(whole).macs:
            raise ValueError(
                f"model '{model}' has more parameters and multiply-adds than the run's own model, "
                f"which must be the largest: set model.name={model} and list the present one in "
                "models"
            )
    return (*sort_menu(made), whole)
