"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
(arXiv 1602.05629, Algorithm 1).

    w <- sum_c n_c w_c / sum_c n_c

over the devices c of a round with n_c examples each. Here the mean is taken per coordinate over the
devices that hold it, and a coordinate that nobody holds keeps its value: with one size for all this
is FedAvg, and with a menu of sizes the coverage mean that InCo calls HeteroAvg. With `sharing =
"architecture"` the mean is taken over the devices of one size only, each size starting from its
corner of the initial network. Running statistics of batch norm travel and are averaged like weights
(`norm = "tracked"`), or stay out (`"static"`).

Every other method is built on this record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part, Total, mean
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, Tensors, round_at
from federated.task import Profile, Recipe, Update
from models.families.catalogue import full, menu, parameters, shapes, statistics
from models.slicing import Plan, Row, as_slices, corners, extract
from models.submodel import Network, Submodel

__all__ = [
    "apart",
    "assign",
    "dispatch",
    "fedavg",
    "finish",
    "parts",
    "place",
    "proposal",
    "rate",
    "recipe",
    "start",
    "weight",
]

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "widths": Setting(
            (1.0,),
            "fractions of the channels of every layer, one submodel for each",
            above=0,
            most=1,
        ),
        "depths": Setting(
            (),
            "blocks per section, one number or a list of one per section, one submodel for each; "
            "empty: all blocks",
            least=1,
            each=int | tuple[int, ...],
        ),
        "weighting": Setting(
            "samples",
            "weight of an update in the mean: its number of examples, or the same for all",
            ("samples", "uniform"),
        ),
        "sharing": Setting(
            "coverage",
            "a weight is averaged over all devices that hold it, or those of the same submodel",
            ("coverage", "architecture"),
        ),
        "epochs": Setting(1, "passes over a device's data per round", least=1),
        "steps": Setting(0, "most steps per round; 0: no limit", least=0),
        "batch": Setting(32, "examples per step", least=1),
        "optimiser": Setting(
            "sgd",
            "optimiser on the device, without state from earlier rounds",
            ("sgd", "adam", "adamw"),
        ),
        "lr": Setting(0.05, "learning rate", above=0),
        "lr_decay": Setting(
            1.0, "factor by which the learning rate changes after each round", above=0
        ),
        "milestones": Setting(
            (),
            "from each of these rounds on, the learning rate is a tenth of what it was before",
            above=0,
            schedule=True,
        ),
        "momentum": Setting(0.9, "momentum of sgd", least=0, most=1),
        "decay": Setting(0.0, "weight decay", least=0),
        "clip": Setting(0.0, "largest L2 norm of a step's gradient; 0: no limit", least=0),
        "masked": Setting(
            False, "in training, set the logits of classes that a device does not have to 0"
        ),
        "hide": Setting(
            0.15,
            "fraction of the tokens that are hidden from a masked language model",
            least=0,
            most=1,
        ),
        "norm": Setting(
            "tracked",
            "batch norm statistics are averaged like weights, or measured by the fleet (static)",
            ("static", "tracked"),
        ),
    }
)
RECIPE = tuple(f.name for f in fields(Recipe))
TENTH = 0.1
CLIP = 1.0  # of gradients of values, where the settings say none


def proposal(
    network: Network, settings: Settings, features: Sequence[str] = ()
) -> tuple[Submodel, ...]:
    """Every width with every depth of the settings; no depths means every block."""
    deepest = max(map(len, full(network).mask), default=1)
    try:
        return menu(network, settings["widths"], settings["depths"] or (deepest,), features)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """tensors: parameters and running statistics of the whole network; under static norm the latter
    are left out.
    """
    network = submodels[0].network
    whole = full(network, submodels[0].features)
    kept = shapes(whole) | (statistics(whole) if settings["norm"] == "tracked" else {})
    return State(0, {name: tensors[name] for name in kept}, settings)


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """The submodel with most parameters."""
    return max(affordable, key=lambda s: (parameters(s), s.name))


def place(state: State, submodel: Submodel) -> Plan:
    local = shapes(submodel) | (statistics(submodel) if state.settings["norm"] == "tracked" else {})
    plan = corners(
        {home: tuple(value.shape) for home, value in state.tensors.items()}, submodel, local
    )
    if state.settings.get("sharing") == "architecture":
        return replace(plan, rows=tuple(apart(row, submodel.plain.name) for row in plan.rows))
    return plan


def apart(row: Row, group: str) -> Row:
    """The row of a corner, in a home of a group's own; until it is written, that reads the
    corner.
    """
    return replace(row, home=f"{row.home}@{group}", shape=tuple(stop for _, stop in row.here))


def dispatch(state: State, plan: Plan) -> dict[str, Tensor]:
    return extract(state.tensors, plan)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """The settings as a recipe. Values know no classes to mask, and the squared error of an
    untrained network has no bound: its gradient gets one.
    """
    known: dict[str, Any] = {key: state.settings[key] for key in RECIPE if key in state.settings}
    made = Recipe(**{**known, "lr": rate(state.settings, state.round + 1)})
    return (
        replace(made, masked=False, clip=made.clip or CLIP)
        if submodel.network.objective == "value"
        else made
    )


def rate(settings: Settings, number: int) -> float:
    """The learning rate of a round, from 1."""
    passed = sum(number >= fall for fall in falls(settings))
    return float(settings["lr"] * settings["lr_decay"] ** (number - 1) * TENTH**passed)


def falls(settings: Settings) -> list[int]:
    """The rounds from which the learning rate is a tenth of what it was. Shares leave every rate at
    least one round, in a run of few rounds too.
    """
    milestones, rounds = settings["milestones"], settings["rounds"]
    return [
        max(index, round_at(at, rounds)) if at < 1 else round_at(at, rounds)
        for index, at in enumerate(milestones, 2)
    ]


def weight(state: State, update: Update) -> float:
    """n_c, or 1 under uniform weighting."""
    return float(update.samples) if state.settings["weighting"] == "samples" else 1.0


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """One part per row of the plan whose tensor the update holds."""
    share = weight(state, update)
    for row in plan.rows:
        if row.local in update.tensors:
            yield Part(
                row.home,
                row.there,
                row.shape,
                torch.as_tensor(update.tensors[row.local])[as_slices(row.here)],
                share,
            )


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """The coverage mean of every home that the round touched; a variance stays at or above 0, and
    an empty round changes no tensor.
    """
    new = {home: mean(one, state.tensors.get(home)) for home, one in total.sums.items()}
    for home, value in new.items():
        if home.partition("@")[0].endswith("running_var"):
            value.clamp_(min=0)
    return replace(state, round=state.round + 1, tensors={**state.tensors, **new})


def fedavg() -> Method:
    return Method(
        name="fedavg",
        summary="the mean of all devices' weights, by examples; with several sizes, of those that "
        "hold a weight",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, AISTATS 2017 (arXiv 1602.05629)",
        settings=SETTINGS,
        features=(),
        menu=proposal,
        start=start,
        assign=assign,
        place=place,
        dispatch=dispatch,
        recipe=recipe,
        parts=parts,
        finish=finish,
    )
