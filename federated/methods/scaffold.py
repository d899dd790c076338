"""SCAFFOLD: control variates correct the drift of local training (Karimireddy et al., Stochastic
Controlled Averaging for Federated Learning, arXiv 1910.06378, Algorithm 1, option II).

Difference from FedAvg: the coordinator keeps a control variate c and each device its own c_i, of
the shapes of the trainable parameters and initially 0. A device adds c - c_i to each of its steps
and sends the change of c_i (`federated.training.step_corrections`). Then

    w <- w + eta_g (mean_S w_i - w),    c <- c + (1/N) sum_S (c_i+ - c_i)

over the devices S of the round, with N the number of devices in the whole fleet. c is stored as
`c/NAME`, and sent to the device and back beside the weights.

With several sizes, c is sliced like the weights, and N is counted per coordinate: all devices that
hold it now or ever trained it. A device keeps its c_i when it gets a smaller submodel or leaves, so
c stays the mean of the c_i:

    c = (1/N) sum_i c_i,    and when N becomes N',    c <- (N c + sum_S (c_i+ - c_i)) / N'

The coordinator stores the N of c as `n/c/NAME`: one row per rectangle, with (start, stop) per axis
and then the number of devices. N of a coordinate is the sum over the rectangles that contain it.

Weights are averaged by examples, or uniformly as in the paper (setting `weighting`); variates are
always averaged uniformly. Running statistics have no variate. Momentum defaults to 0, as in the
paper. c_i is computed from K, the number of steps taken, and the nominal learning rate under every
optimiser, as in NIID-Bench (arXiv 2102.02079).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Sum, Total, bands, is_inside
from federated.engine.update_contributions import Part, Weight
from federated.method import Method, Setting, Settings, State, Tensors, vary
from federated.methods import fedavg as base
from federated.methods.common.inactive_mechanisms import one_round
from federated.task import Recipe, Update
from federated.training.state_between_rounds import PREFIX
from models.slicing import Plan, Where, as_slices, read_home
from models.submodel import Submodel
from models.submodel_building import full, shapes

__all__ = ["make_disjoint", "scaffold"]

COUNTS = "n/"  # prefix of the homes that hold the number of devices of a variate
Cover = Mapping[Where, int]
"""Number of devices that hold each rectangle."""


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return FedAvg's state with c = 0."""
    state = base.start(tensors, submodels, settings)
    trained = shapes(full(submodels[0].network, submodels[0].features))
    return replace(
        state,
        tensors={
            **state.tensors,
            **{PREFIX + name: torch.zeros(shape) for name, shape in trained.items()},
        },
    )


def place(state: State, submodel: Submodel) -> Plan:
    """Return FedAvg's rows, and one row for the control variate of each parameter."""
    plan, trained = base.place(state, submodel), shapes(submodel)
    variates = tuple(
        replace(row, local=PREFIX + row.local, home=PREFIX + row.home)
        for row in plan.rows
        if row.local in trained
    )
    return replace(plan, rows=plan.rows + variates)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe with control variates."""
    return replace(
        base.recipe(state, submodel),
        variate="scaffold",
        apart=base.separates_sizes(state.settings),
    )


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield FedAvg's parts; for variates c + (c_i+ - c_i) with weight 1."""
    for part in base.parts(state, plan, update):
        if part.home.startswith(PREFIX):
            part = replace(
                part,
                value=read_home(state.tensors, part.home, part.shape)[as_slices(part.where)]
                + part.value,
                weight=1.0,
            )
        yield part


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return FedAvg's state, with parameters moved eta_g times as far, and variates moved by the
    fraction of their holders that answered.
    """
    after, eta = base.finish(state, total, rng), float(state.settings["server_lr"])
    new, present_now = dict(after.tensors), count_holders(state)
    for home, one in total.sums.items():
        old = read_home(state.tensors, home, one.value.shape)
        if home.startswith(PREFIX):
            now = present_now.get(home, {})
            before = read_table(state.tensors.get(COUNTS + home)) if state.holders else {}
            new[home] = update_variate(old, new[home], one, now, before)
            if state.holders and now:
                new[COUNTS + home] = make_table(now)
        elif eta != 1 and PREFIX + home in total.sums:
            new[home] = torch.lerp(old, new[home], eta)
    return replace(after, tensors=new)


def count_holders(state: State) -> Mapping[str, Cover]:
    """Return how many devices hold each rectangle of each home; a device counts once per
    coordinate. Without a record of earlier rounds, count the present fleet.
    """
    found: dict[str, dict[Where, int]] = {}
    for submodels, count in (
        state.holders or {(submodel,): count for submodel, count in state.fleet.items()}
    ).items():
        rectangles: dict[str, dict[Where, None]] = {}
        for row in (
            row
            for submodel in submodels
            for row in place(state, submodel).rows
            if row.home.startswith(PREFIX)
        ):
            rectangles.setdefault(row.home, {})[row.there] = None
        for home, several in rectangles.items():
            known = found.setdefault(home, {})
            for where in make_disjoint(several):
                known[where] = known.get(where, 0) + count
    return found


def make_disjoint(rectangles: Collection[Where]) -> list[Where]:
    """Return rectangles that cover the same coordinates without overlap; among nested ones, the
    outermost.
    """
    outer = [
        one
        for one in rectangles
        if not any(one != other and is_inside(one, other) for other in rectangles)
    ]
    if len(outer) == 1:
        return outer
    shape = [max(where[axis][1] for where in outer) for axis in range(len(outer[0]))]
    return [
        band
        for band, _ in bands(
            Sum(torch.empty(shape, device="meta"), {where: [1.0] for where in outer})
        )
    ]


def update_variate(old: Tensor, average: Tensor, one: Sum, now: Cover, before: Cover) -> Tensor:
    """Return (N old + |S| (average - old)) / N' per coordinate.

    now, before: rectangles whose counts add up to N' and N; where N is unknown, N' is used

    N' is at least |S|, since a device that answered is present. A coordinate that no device
    holds now was never trained, so it stays 0.
    """
    answered = {where: float(columns[0]) for where, columns in one.cover.items()}
    columns: dict[Where, list[Weight]] = {
        where: [float(source.get(where, 0)) for source in (answered, now, before)]
        for where in {**answered, **now, **before}
    }
    frame, new = Sum(one.value, columns), average.clone()
    for (band, s), (_, n), (_, b) in zip(
        bands(frame), bands(frame, 1), bands(frame, 2), strict=True
    ):
        here, there = as_slices(band), max(float(n), float(s))
        if s < there:
            new[here] = torch.lerp(old[here], average[here], float(s) / there)
        if b and there and b != there:
            new[here] += old[here] * (float(b) / there - 1)
    return new


def make_table(cover: Cover) -> Tensor:
    """Return rectangles and their counts as int64 [rectangles, 2 axes + 1]."""
    return torch.tensor(
        [[*itertools.chain.from_iterable(where), count] for where, count in cover.items()],
        dtype=torch.int64,
    )


def read_table(table: Tensor | None) -> Cover:
    """Return the rectangles and counts of a table; empty for None."""
    rows = [] if table is None else table.tolist()
    return {tuple(zip(edges[::2], edges[1::2], strict=True)): count for *edges, count in rows}


def scaffold() -> Method:
    plain = base.fedavg()
    return replace(
        plain,
        name="scaffold",
        summary="FedAvg with control variates that correct the drift of each device",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated "
        "Learning, ICML 2020 (arXiv 1910.06378)",
        settings=vary(
            plain.settings,
            momentum=0.0,
            server_lr=Setting(
                1.0,
                "learning rate of the coordinator; 1: the mean of the weights is used as it is",
                above=0,
            ),
        ),
        forbids={
            "buffered": "a late control variate is a gradient at old weights, and would "
            "affect the coordinator's variate in all later rounds"
        },
        start=start,
        place=place,
        recipe=recipe,
        parts=parts,
        finish=finish,
        inactive=partial(one_round, effect="all control variates are zero"),
    )
