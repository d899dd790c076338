"""FedAvg: average the devices' weights by their numbers of examples (McMahan et al.,
Communication-Efficient Learning of Deep Networks from Decentralized Data, arXiv 1602.05629,
Algorithm 1).

    w <- sum_c n_c w_c / sum_c n_c

over the devices c of a round with n_c examples each. Here the mean is taken per coordinate over the
devices that hold it, and a coordinate that no device holds keeps its value. With one size this is
FedAvg; with several it is the coverage mean that InCo calls HeteroAvg. With `sharing =
"architecture"` the mean is taken only over devices of the same size, and each size starts from its
corner of the initial network. Running statistics of batch norm are sent and averaged like weights
(`norm = "tracked"`), or never sent (`"static"`).

The other methods start from the `Method` that `fedavg()` returns, and replace some of its
functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
from torch import Tensor

from federated.engine.aggregate import Total, mean
from federated.engine.update_contributions import RowParts, Terms
from federated.method import Method, Setting, Settings, State, Tensors, round_at
from federated.methods.common.width_depth_submodels import assign, propose_sizes
from federated.task import Augmentation, Optimiser, Recipe, Update
from models.slicing import Plan, Row, corners, extract, is_variance
from models.submodel import Submodel
from models.submodel_building import full, shapes, statistics

__all__ = [
    "dispatch",
    "fedavg",
    "finish",
    "learning_rate",
    "list_sent",
    "move_to_group",
    "parts",
    "place",
    "recipe",
    "separates_sizes",
    "start",
    "weight",
]

SETTINGS: Mapping[str, Setting] = {
    "widths": Setting(
        (1.0,),
        "fractions of the channels of every layer; one submodel each",
        above=0,
        most=1,
    ),
    "depths": Setting(
        (),
        "blocks per section, a number or a list with one per section; one submodel each; "
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
        "average each weight over all devices that hold it, or over those of the same submodel",
        ("coverage", "architecture"),
    ),
    "epochs": Setting(Recipe.epochs, "passes over a device's data per round", least=1),
    "steps": Setting(Recipe.steps, "maximum number of steps per round; 0: no limit", least=0),
    "batch": Setting(Recipe.batch, "examples per step", least=1),
    "optimiser": Setting(
        Recipe.optimiser,
        "optimiser on the device",
        get_args(Optimiser),
    ),
    "keep_optimiser": Setting(
        Recipe.keep_optimiser, "keep the optimiser's state on the device between rounds"
    ),
    "lr": Setting(Recipe.lr, "learning rate", above=0),
    "lr_decay": Setting(1.0, "factor by which the learning rate changes after each round", above=0),
    "milestones": Setting(
        (),
        "rounds at which the learning rate is divided by 10",
        above=0,
        schedule=True,
    ),
    "warmup": Setting(
        0.0,
        "first rounds, in which the learning rate rises in equal steps",
        least=0,
        schedule=True,
    ),
    "cosine": Setting(
        False,
        "after the warm-up, the learning rate falls to 0 at the end of the run along half a cosine",
    ),
    "momentum": Setting(Recipe.momentum, "momentum of sgd", least=0, most=1),
    "decay": Setting(Recipe.decay, "weight decay", least=0),
    "clip": Setting(Recipe.clip, "maximum L2 norm of a step's gradient; 0: no limit", least=0),
    "masked": Setting(
        Recipe.masked,
        "in training, set the logits of classes without examples on the device to 0",
    ),
    "hide": Setting(
        Recipe.hide,
        "fraction of the tokens that are hidden from a masked language model",
        least=0,
        most=1,
    ),
    "augment": Setting(
        Recipe.augment,
        "random changes to the images of each training step: crop (shift), flip (left to right), "
        "cutout (hide a square)",
        each=Augmentation,
    ),
    "norm": Setting(
        "tracked",  # FedAvg's mean is over all tensors; a plain recipe sends no statistics
        "batch norm statistics: averaged like weights (tracked) or measured (static)",
        ("static", "tracked"),
    ),
}
RECIPE = tuple(f.name for f in fields(Recipe))
TENTH = 0.1
CLIP = 1.0  # default for regression, whose gradients have no bound


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return the state before the first round.

    tensors: parameters and running statistics of the whole network; static norm drops the latter
    """
    network = submodels[0].network
    whole = full(network, submodels[0].features)
    kept = list_sent(whole, settings)
    return State(0, {name: tensors[name] for name in kept}, settings, menu=tuple(submodels))


def list_sent(submodel: Submodel, settings: Settings) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a device sends: parameters, and running statistics
    under tracked norm.
    """
    return shapes(submodel) | (statistics(submodel) if settings["norm"] == "tracked" else {})


def place(state: State, submodel: Submodel) -> Plan:
    """Return the leading corners. With `sharing = "architecture"`, each size has its own homes."""
    plan = corners(
        {home: tuple(value.shape) for home, value in state.tensors.items()},
        submodel,
        list_sent(submodel, state.settings),
    )
    if separates_sizes(state.settings):
        return replace(
            plan, rows=tuple(move_to_group(row, submodel.plain.name) for row in plan.rows)
        )
    return plan


def separates_sizes(settings: Settings) -> bool:
    """Return whether each size has its own mean; never in a method without the setting."""
    return "sharing" in settings and settings["sharing"] == "architecture"


def move_to_group(row: Row, group: str) -> Row:
    """Return the row with a home that belongs to one group. Until it is written, reading it returns
    the corner. The home of a tensor in pieces has the shape of the whole.
    """
    shape = row.shape if row.partial else tuple(stop for _, stop in row.here)
    return replace(row, home=f"{row.home}@{group}", shape=shape)


def dispatch(state: State, plan: Plan) -> dict[str, Tensor]:
    """Return the tensors of a plan."""
    return extract(state.tensors, plan)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return the settings as a recipe. Only images are augmented. Regression has no classes to
    mask, and its squared error has no bound while the network is untrained, so it clips gradients
    by default.
    """
    known: dict[str, Any] = {key: state.settings[key] for key in RECIPE if key in state.settings}
    if not submodel.network.reads_images:
        known["augment"] = ()
    made = Recipe(**{**known, "lr": learning_rate(state.settings, state.round + 1)})
    return (
        replace(made, masked=False, clip=made.clip or CLIP)
        if submodel.network.objective == "value"
        else made
    )


def learning_rate(settings: Settings, number: int) -> float:
    """Return the learning rate of a round, counted from 1. In a run of unknown length it does not
    fall along a cosine.
    """
    passed = sum(number >= milestone for milestone in milestone_rounds(settings))
    rate = settings["lr"] * settings["lr_decay"] ** (number - 1) * TENTH**passed
    rounds = settings["rounds"]
    warm = round_at(settings["warmup"], rounds)
    if number <= warm:
        rate *= number / (warm + 1)
    elif settings["cosine"] and rounds > warm:
        rate *= (1 + math.cos(math.pi * min(1.0, (number - 1 - warm) / (rounds - warm)))) / 2
    return float(rate)


def milestone_rounds(settings: Settings) -> list[int]:
    """Return the rounds from which the learning rate is a tenth of what it was. If given as
    fractions, they leave every rate at least one round, even in a short run.
    """
    milestones, rounds = settings["milestones"], settings["rounds"]
    return [
        max(index, round_at(at, rounds)) if at < 1 else round_at(at, rounds)
        for index, at in enumerate(milestones, 2)
    ]


def weight(state: State, update: Update) -> float:
    """Return n_c, or 1 under uniform weighting."""
    return float(update.samples) if state.settings["weighting"] == "samples" else 1.0


def parts(state: State, plan: Plan, update: Update) -> RowParts:
    """Return one part per row of the plan whose tensor the update holds."""
    return RowParts(plan.rows, update.tensors, Terms(weight(state, update)))


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return the state with the coverage mean of every home that the round folded into. Variances
    stay at or above 0, and an empty round changes no tensor.
    """
    new = {home: mean(one, state.tensors.get(home)) for home, one in total.sums.items()}
    for home, value in new.items():
        if is_variance(home):
            value.clamp_(min=0)
    return replace(state, round=state.round + 1, tensors={**state.tensors, **new})


def fedavg() -> Method:
    return Method(
        name="fedavg",
        summary="the mean of the devices' weights, weighted by examples; with several submodels, "
        "each weight is the mean over the devices that hold it",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, AISTATS 2017 (arXiv 1602.05629)",
        settings=SETTINGS,
        features=(),
        menu=propose_sizes,
        start=start,
        assign=assign,
        place=place,
        dispatch=dispatch,
        recipe=recipe,
        parts=parts,
        finish=finish,
    )
