"""Decide whether a run can use gateways. A gateway sends one update for several devices: the mean
of theirs, weighted by examples, with the sum of their examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coordinator.settings.config import Config
from federated.engine.aggregate import Sum, Total, fold
from federated.method import Method, State
from federated.task import Recipe, Update
from models.submodel import Submodel

__all__ = ["explain_gateways", "explain_inexact_mean"]

EXAMPLES, STEPS = (3, 5), (2, 7)  # of the two devices of a trial
CLOSE, TINY = 1e-4, 1e-5  # relative and absolute error of float32 sums


def explain_gateways(config: Config, method: Method, state: State, menu: Sequence[Submodel]) -> str:
    """Return why a run cannot use gateways; empty if it can. state: before any round."""
    if config.robust.rule != "none":
        return f"robust.rule = '{config.robust.rule}' compares the updates of single devices"
    if config.private.noise:
        return "private.noise is calibrated for updates of single devices"
    if method.hooks is not None and method.hooks.survey is not None:
        return f"method {method.name} asks each device about its data when it joins"
    if kept := describe_memory(method, [method.recipe(state, one) for one in menu]):
        return f"the devices of method {method.name} keep {kept} between rounds"
    return explain_inexact_mean(method, state, menu[0])


def describe_memory(method: Method, recipes: Sequence[Recipe]) -> str:
    """Return what devices keep between rounds, which depends on each device's own updates; empty if
    they keep nothing.
    """
    hooks = method.hooks
    if any(recipe.keep for recipe in recipes):
        return "tensors of their own"
    if any(recipe.keep_optimiser for recipe in recipes):
        return "the state of their optimiser"
    if any(recipe.variate for recipe in recipes):
        return "a control variate"
    if hooks is not None and not hooks.plain:
        return "or may keep values of the method's own code"
    return ""


def explain_inexact_mean(method: Method, state: State, submodel: Submodel) -> str:
    """Return why the mean of two updates does not count as both of them do; empty if it does.

    Combine two arbitrary updates of different examples, steps and classes, and their mean, and
    compare the sums. So this needs no declaration of the method, and holds for its settings.
    """
    try:
        plan = method.place(state, submodel)
        received = method.dispatch(state, plan)
        pair = [make_update(submodel, received, device) for device in range(2)]
        both, one = Total(), Total()
        for device, update in enumerate(pair):
            fold(both, method.parts(state, plan, update), (device,))
        fold(one, method.parts(state, plan, average(pair)), (0,))
    except Exception as error:  # a method of another package
        return f"method {method.name} cannot combine updates of gateways: {error}"
    if are_close(both.sums, one.sums):
        return ""
    settings = state.settings
    if "weighting" in settings and settings["weighting"] != "samples":
        return (
            f"with method.weighting = '{settings['weighting']}' a gateway does not count as all of "
            "its devices: set method.weighting = 'samples'"
        )
    return (
        f"method {method.name} does not count the mean of two updates, weighted by examples, as "
        "both of them"
    )


def make_update(submodel: Submodel, received: Mapping[str, Tensor], device: int) -> Update:
    """Return an arbitrary update of one of two devices, without negative variances."""
    draws = torch.Generator().manual_seed(device)
    moved = {
        name: value + 0.1 * torch.rand(value.shape, generator=draws)
        for name, value in received.items()
    }
    notes = {"labels": [device], "loss": 1.0 + device}
    sizes = EXAMPLES[device], STEPS[device]
    return Update("run", 1, 1, f"device{device}", "train", submodel, "0", *sizes, moved, notes)


def average(pair: Sequence[Update]) -> Update:
    """Return the update of a gateway for two devices."""
    first, second = pair
    total = first.samples + second.samples
    tensors = {
        name: (first.samples * value.double() + second.samples * second.tensors[name].double())
        .div(total)
        .float()
        for name, value in first.tensors.items()
    }
    notes = {"labels": [*first.notes["labels"], *second.notes["labels"]], "loss": 1.5}
    steps = max(first.steps, second.steps)
    return replace(first, samples=total, steps=steps, tensors=tensors, notes=notes)


def are_close(first: Mapping[str, Sum], second: Mapping[str, Sum]) -> bool:
    """Return True if sums and weights are equal but for rounding."""
    return first.keys() == second.keys() and all(
        torch.allclose(one.value, second[home].value.to(one.value), CLOSE, TINY)
        and one.cover.keys() == second[home].cover.keys()
        and all(
            torch.allclose(to_tensor(a), to_tensor(b), CLOSE, TINY)
            for where, columns in one.cover.items()
            for a, b in zip(columns, second[home].cover[where], strict=True)
        )
        for home, one in first.items()
    )


def to_tensor(weight: float | Tensor) -> Tensor:
    return torch.as_tensor(weight, dtype=torch.float64)
