"""Methods with exits: DepthFL and ScaleFL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.methods.depthfl import consistency
from federated.task import Recipe
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from models.submodel import Network, Submodel
from tests.support.golden import by_owner, close, floats, golden, play_round

TOLD = Submodel(Network("resnet", "small", (1, 8, 8), 2), 1.0, ((1, 1), (1, 1), (0, 0)), ("exits",))


class Told(nn.Module):
    """A stand-in for a network that returns given logits [exits, 1, classes] for every example."""

    def __init__(self, logits: list[list[list[float]]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(floats(logits))

    def exits(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(self.logits)


def compute_loss(name, logits, label, options):
    """Return the loss of one example, as computed by the training loop and a method's hooks."""
    recipe = Recipe(batch=1, hook=name, options=options)
    session = open_session(
        Told(logits),
        TOLD,
        recipe,
        TrainingSet(np.zeros((1, 1)), np.array([label]), [label]),
        seed=0,
    )
    return train_session(session, find_method(name).hooks)


def check_depthfl(toy):
    g = golden("depthfl")
    before = {f"l{i}": floats(value)[None] for i, value in enumerate(g["original"])}
    locals_ = [
        {f"l{i}": floats(value)[None] for i, value in enumerate(client["layers"])}
        for client in g["clients"]
    ]
    updates = [
        (s, tensors, 1 + 7 * i, {})
        for i, (s, tensors) in enumerate(zip(by_owner(toy, before, locals_), locals_, strict=True))
    ]
    plain = play_round(find_method("depthfl"), before, updates, solver="fedavg")
    dynamic = play_round(find_method("depthfl"), before, updates, alpha=0.1)
    for i, (mean, corrected, h) in enumerate(
        zip(g["expected_plain"], g["expected_feddyn_alpha0.1_N2"], g["expected_h"], strict=True)
    ):
        close(plain[f"l{i}"], mean)
        close(dynamic[f"l{i}"], corrected)
        close(dynamic.get(f"h/l{i}", torch.zeros(1)), h)
    case = g["loss_case"]
    close(
        compute_loss(
            "depthfl", case["exit_logits"], case["label"], {"weight": case["consistency_weight"]}
        ),
        case["expected_total"],
    )
    chosen, schedule = find_method("depthfl"), g["consistency_weight_schedule"]
    states = [
        State(0, {}, configure(chosen, given, rounds=rounds))
        for given, rounds in (({"ramp": 300}, 20), ({}, 1000))
    ]
    for number, weight in schedule.items():
        close(consistency(int(number), 300), weight)
        for state in states if int(number) else ():
            close(
                chosen.recipe(replace(state, round=int(number) - 1), TOLD).options["weight"], weight
            )


def check_scalefl_aggregate(toy):
    """Check that a weight without a gradient is of no submodel: the first level has no second
    layer.
    """
    g = golden("scalefl_aggregate")
    before = {
        name: torch.full((g["width"],), float(g["global_value"])) for name in g["expected_both"]
    }
    locals_ = [
        {
            name: torch.full((c["width"],), float(c["value"]))
            for name, there in c["has_grad"].items()
            if there
        }
        for c in g["clients"]
    ]
    updates = [
        (s, tensors, 1 + 7 * i, {})
        for i, (s, tensors) in enumerate(zip(by_owner(toy, before, locals_), locals_, strict=True))
    ]
    for expected, given in (("expected_both", updates), ("expected_only_level0", updates[:1])):
        after = play_round(find_method("scalefl"), before, given)
        for name, value in g[expected].items():
            close(after[name], value)


def check_scalefl_loss(toy):
    g = golden("scalefl_loss")
    options = {"gamma": g["gamma"], "temperature": g["T"], "variant": "code"}
    close(compute_loss("scalefl", g["exit_logits"], g["label"], options), g["expected_total"])
