"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (arXiv 2007.07481, section 4).

Against FedAvg, what a device moved in tau_c steps counts per step, and the mean step is taken as
often as the mean device did:

    d_c = (w_t - w_c) / a_c,    w <- w_t - (sum_c p_c a_c) (sum_c p_c d_c),    p_c = n_c / sum_k n_k

    a_c = (tau_c - rho (1 - rho^tau_c) / (1 - rho)) / (1 - rho)    for SGD with momentum rho
    a_c = tau_c                                                    without momentum

With several sizes both sums go per coordinate over the devices that hold it. Running statistics are
no sums of steps: their mean is FedAvg's. As in NIID-Bench (arXiv 2102.02079), a_c is SGD's under
every optimiser, with the setting `momentum` as rho; under Adam that fits no step that was taken,
and set to 0 it leaves the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part, Sum, Total, bands, mean
from federated.method import Method, State
from federated.methods.common.inactive import one_step
from federated.methods.fedavg import fedavg, finish, parts
from federated.task import Update
from models.families.catalogue import shapes
from models.slicing import Plan, as_slices, present

__all__ = ["fednova", "normaliser"]

STEPS = (
    "parts are steps, each divided by how many its device says that it took: no weights that "
    "could be bounded or compared"
)


def normaliser(steps: int, rho: float) -> float:
    """a_c: by how much `steps` gradients of SGD with momentum rho move the weights, if each is one
    learning rate long.
    """
    return (
        steps * (steps + 1) / 2
        if rho == 1
        else (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    )


def normalised(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """-d_c for each parameter, with n_c a_c beside it; statistics as they are."""
    a, trained = normaliser(update.steps, state.settings["momentum"]), shapes(plan.submodel)
    for part in parts(state, plan, update):
        if part.home.partition("@")[0] in trained:
            moved = (
                part.value - present(state.tensors, part.home, part.shape)[as_slices(part.where)]
            )
            yield replace(part, value=moved / a, extra=(float(part.weight) * a,))
        else:
            yield part


def stepped(old: Tensor, one: Sum) -> Tensor:
    """The old tensor, moved by the mean step as often as the mean of those that cover a coordinate
    did.
    """
    step, new = mean(one, torch.zeros_like(old)), old.clone()
    for (band, weight), (_, weighted) in zip(bands(one), bands(one, 1), strict=True):
        if float(weight) > 0:
            new[as_slices(band)] += step[as_slices(band)] * (float(weighted) / float(weight))
    return new


def finish_steps(state: State, total: Total, rng: np.random.Generator) -> State:
    steps = {
        home: one for home, one in total.sums.items() if len(next(iter(one.cover.values()))) > 1
    }
    after = finish(
        state, Total({home: one for home, one in total.sums.items() if home not in steps}), rng
    )
    new = {
        home: stepped(present(state.tensors, home, one.value.shape), one)
        for home, one in steps.items()
    }
    return replace(after, tensors={**after.tensors, **new})


def fednova() -> Method:
    return replace(
        fedavg(),
        name="fednova",
        summary="FedAvg of steps: devices that took more of them do not weigh more for it",
        paper="Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020 (arXiv "
        "2007.07481)",
        forbids={"private": STEPS, "robust": STEPS},
        parts=normalised,
        finish=finish_steps,
        inactive=partial(
            one_step,
            effect="gives every device the same number of steps, so there is nothing to normalise",
        ),
        breaks={"fedavg": "devices that took unequal numbers of steps count per step"},
    )
