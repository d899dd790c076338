"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning (arXiv 1910.06378, Algorithm 1, option II).

Against FedAvg, the coordinator keeps a control variate c and each device its own c_i, of the shapes of the trainable parameters, all zero at
first. A device adds c - c_i to each of its steps and sends the change of c_i (`federated.variates`); then

    w <- w + eta_g (mean_S w_i - w),    c <- c + (1/N) sum_S (c_i+ - c_i)

over the devices S of the round, with N the devices of the whole fleet. With several sizes c is cut as the weights are, and N counts per
coordinate the present devices whose submodel holds it. c lives in homes `c/NAME`, which go to the device and come back beside the weights.

The weights are averaged by examples, or uniformly as the paper has it, by the setting `weighting`; variates always uniformly. Running
statistics have no variate. Momentum is 0 unless told otherwise, as in the paper; K, the steps that were taken, and the nominal
learning rate give c_i under every optimiser, as in NIID-Bench (arXiv 2102.02079).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.aggregate import Sum, Total, bands
from federated.common.inactive import one_round
from federated.method import Method, Part, Setting, Settings, State, Tensors, varied
from federated.methods import fedavg as base
from federated.task import Recipe, Update
from federated.variates import PREFIX
from models.families import full, shapes
from models.slicing import Plan, Where, at, present
from models.submodel import Submodel

__all__ = ["scaffold"]


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """FedAvg's, and c = 0."""
    state = base.start(tensors, submodels, settings)
    trained = shapes(full(submodels[0].network, submodels[0].features))
    return replace(state, tensors={**state.tensors, **{PREFIX + name: torch.zeros(shape) for name, shape in trained.items()}})


def place(state: State, submodel: Submodel) -> Plan:
    """FedAvg's rows, and beside each parameter's its variate's."""
    plan, trained = base.place(state, submodel), shapes(submodel)
    variates = tuple(replace(row, local=PREFIX + row.local, home=PREFIX + row.home) for row in plan.rows if row.local in trained)
    return replace(plan, rows=plan.rows + variates)


def recipe(state: State, submodel: Submodel) -> Recipe:
    return replace(base.recipe(state, submodel), variate="scaffold")


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """FedAvg's; of a variate c + (c_i+ - c_i), each device counting once."""
    for part in base.parts(state, plan, update):
        if part.home.startswith(PREFIX):
            part = replace(part, value=present(state.tensors, part.home, part.shape)[at(part.where)] + part.value, weight=1.0)
        yield part


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """FedAvg's, the parameters moved eta_g times as far, and the variates by the share of the fleet that answered."""
    after, eta, fleet = base.finish(state, total, rng), float(state.settings["server_lr"]), holders(state)
    new = dict(after.tensors)
    for home, one in total.sums.items():
        old = present(state.tensors, home, one.value.shape)
        if home.startswith(PREFIX):
            new[home] = shared(old, new[home], one, fleet.get(home, {}))
        elif eta != 1 and PREFIX + home in total.sums:
            new[home] = torch.lerp(old, new[home], eta)
    return replace(after, tensors=new)


def holders(state: State) -> dict[str, dict[Where, int]]:
    """How many devices of the present fleet hold each rectangle of each home."""
    found: dict[str, dict[Where, int]] = {}
    for submodel, count in state.fleet.items():
        for row in place(state, submodel).rows:
            known = found.setdefault(row.home, {})
            known[row.there] = known.get(row.there, 0) + count
    return found


def shared(old: Tensor, average: Tensor, one: Sum, fleet: Mapping[Where, int]) -> Tensor:
    """old + |S|/N (average - old) per coordinate. Who answered counts as present, whatever is known of the fleet."""
    answered = {where: float(one.cover[where][0]) if where in one.cover else 0.0 for where in {**fleet, **one.cover}}
    here = Sum(one.value, {where: [count] for where, count in answered.items()})
    all_ = Sum(one.value, {where: [max(count, float(fleet.get(where, 0)))] for where, count in answered.items()})
    new = average.clone()
    for (band, s), (_, n) in zip(bands(here), bands(all_), strict=True):
        if float(s) < float(n):
            new[at(band)] = torch.lerp(old[at(band)], average[at(band)], float(s) / float(n))
    return new


def scaffold() -> Method:
    plain = base.fedavg()
    return replace(
        plain,
        name="scaffold",
        summary="FedAvg with control variates that take out where each device drifts",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020 (arXiv 1910.06378)",
        settings=varied(
            plain.settings, momentum=0.0, server_lr=Setting(1.0, "how far the coordinator goes to the mean of the weights; 1: all the way", above=0)
        ),
        forbids={"buffered": "a late variate is a gradient of weights of long ago, and the coordinator's would remember it for ever"},
        start=start,
        place=place,
        recipe=recipe,
        parts=parts,
        finish=finish,
        inactive=partial(one_round, effect="all control variates are zero"),
    )
