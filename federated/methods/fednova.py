"""FedNova: average the devices' changes per local step, so that a device that takes more steps does
not count more (Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, arXiv 2007.07481, section 4).

Difference from FedAvg: the change of a device in tau_c steps is divided by its number of steps, and
the mean of these is multiplied by the mean number of steps:

    d_c = (w_t - w_c) / a_c,    w <- w_t - (sum_c p_c a_c) (sum_c p_c d_c),    p_c = n_c / sum_k n_k

    a_c = (tau_c - rho (1 - rho^tau_c) / (1 - rho)) / (1 - rho)    for SGD with momentum rho
    a_c = (1 - (1 - lr mu)^tau_c) / (lr mu)                        for SGD with FedProx's term
    a_c = tau_c                                                    for plain SGD

With `mu` above 0 a device also minimises mu/2 ||w - w_t||^2, as under FedProx: its later steps are
pulled back, so they count less.

With several sizes, both sums are taken per coordinate over the devices that hold it. Running
statistics are not sums of steps and take FedAvg's mean. As in NIID-Bench (arXiv 2102.02079), a_c is
that of SGD for every optimiser, with the setting `momentum` as rho. It does not match the steps of
Adam; there, `momentum = 0` makes a_c the number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Sum, Total, bands, mean
from federated.engine.update_contributions import Part
from federated.method import Method, Setting, State, vary
from federated.methods.common.inactive_mechanisms import one_step
from federated.methods.fedavg import fedavg, finish, learning_rate, parts
from federated.methods.fedprox import pull_recipe
from federated.task import Update
from models.slicing import Plan, as_slices, read_home
from models.submodel_building import shapes

__all__ = ["fednova", "normaliser"]

STEPS = (
    "it sums updates divided by the number of steps that each device reports; these cannot be "
    "bounded or compared like weights"
)


def normaliser(steps: int, rho: float, pull: float = 0.0) -> float:
    """Return a_c: how far `steps` gradients of SGD with momentum rho move the weights, each of one
    learning rate.

    pull: lr mu, the fraction of their distance by which a step pulls the weights back
    """
    # a step of (distance, momentum, 1): momentum' = rho momentum - pull distance + 1, and
    # distance' = distance + momentum'
    step = np.array([[1 - pull, rho, 1], [-pull, rho, 1], [0, 0, 1]])
    return float(np.linalg.matrix_power(step, steps)[0, 2])


def normalise_parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield -d_c for each parameter, with n_c a_c beside it; statistics unchanged."""
    settings, trained = state.settings, shapes(plan.submodel)
    pull = learning_rate(settings, state.round + 1) * settings["mu"]
    a = normaliser(update.steps, settings["momentum"], pull)
    for part in parts(state, plan, update):
        if part.home.partition("@")[0] in trained:
            change = (
                part.value - read_home(state.tensors, part.home, part.shape)[as_slices(part.where)]
            )
            yield replace(part, value=change / a, extra=(float(part.weight) * a,))
        else:
            yield part


def apply_steps(old: Tensor, one: Sum) -> Tensor:
    """Return the old tensor moved by the mean step, times the mean a_c of the devices that hold
    each coordinate.
    """
    step, new = mean(one, torch.zeros_like(old)), old.clone()
    for (band, weight), (_, weighted) in zip(bands(one), bands(one, 1), strict=True):
        if float(weight) > 0:
            new[as_slices(band)] += step[as_slices(band)] * (float(weighted) / float(weight))
    return new


def finish_steps(state: State, total: Total, rng: np.random.Generator) -> State:
    """Apply the mean steps to parameters, and FedAvg's mean to everything else."""
    steps = {
        home: one for home, one in total.sums.items() if len(next(iter(one.cover.values()))) > 1
    }
    after = finish(
        state, Total({home: one for home, one in total.sums.items() if home not in steps}), rng
    )
    new = {
        home: apply_steps(read_home(state.tensors, home, one.value.shape), one)
        for home, one in steps.items()
    }
    return replace(after, tensors={**after.tensors, **new})


def fednova() -> Method:
    base = fedavg()
    return replace(
        base,
        name="fednova",
        summary="FedAvg of updates divided by their number of local steps, so that devices with "
        "more steps do not dominate",
        paper="Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020 (arXiv "
        "2007.07481)",
        settings=vary(
            base.settings,
            keep_optimiser=None,  # the normaliser assumes that momentum begins at 0
            mu=Setting(0.0, "weight of FedProx's proximal term; 0: none", least=0),
        ),
        forbids={"private": STEPS, "robust": STEPS},
        recipe=pull_recipe,
        parts=normalise_parts,
        finish=finish_steps,
        inactive=partial(
            one_step,
            effect="gives every device the same number of steps, so there is nothing to normalise",
        ),
        breaks={
            "fedavg": "changes are divided by the number of steps, which differs between devices"
        },
    )
