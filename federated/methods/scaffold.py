"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning (arXiv
1910.06378, Algorithm 1, option II).

Against FedAvg, the coordinator keeps a control variate c and each device its own c_i, of the shapes
of the trainable parameters, all zero at first. A device adds c - c_i to each of its steps and sends
the change of c_i (`federated.training.variates`); then

    w <- w + eta_g (mean_S w_i - w),    c <- c + (1/N) sum_S (c_i+ - c_i)

over the devices S of the round, with N the devices of the whole fleet. c lives in homes `c/NAME`,
which go to the device and come back beside the weights.

With several sizes c is cut as the weights are, and N is counted per coordinate: the devices that
hold it now or that ever trained it. A device keeps its c_i of a coordinate when it gets a smaller
submodel, and also when it leaves, so c stays the mean of the c_i:

    c = (1/N) sum_i c_i,    and where N becomes N',    c <- (N c + sum_S (c_i+ - c_i)) / N'

Homes `n/c/NAME` hold the N of c, which the coordinator alone needs: a row per rectangle, its
(start, stop) per axis, then how many devices have it. N of a coordinate is the sum over the
rectangles around it.

The weights are averaged by examples, or uniformly as the paper has it, by the setting `weighting`;
variates always uniformly. Running statistics have no variate. Momentum is 0 unless told otherwise,
as in the paper; K, the steps that were taken, and the nominal learning rate give c_i under every
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

from federated.engine.aggregate import Part, Sum, Total, bands, inside
from federated.method import Method, Setting, Settings, State, Tensors, varied
from federated.methods import fedavg as base
from federated.methods.common.inactive import one_round
from federated.task import Recipe, Update
from federated.training.device_memory import PREFIX
from models.families.catalogue import full, shapes
from models.slicing import Plan, Where, as_slices, present
from models.submodel import Submodel

__all__ = ["scaffold", "united"]

COUNTS = "n/"  # of homes: how many devices the mean in a variate's home is over
Cover = Mapping[Where, int]
"""How many devices have each of these rectangles."""


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """FedAvg's, and c = 0."""
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
    """FedAvg's rows, and beside each parameter's its variate's."""
    plan, trained = base.place(state, submodel), shapes(submodel)
    variates = tuple(
        replace(row, local=PREFIX + row.local, home=PREFIX + row.home)
        for row in plan.rows
        if row.local in trained
    )
    return replace(plan, rows=plan.rows + variates)


def recipe(state: State, submodel: Submodel) -> Recipe:
    return replace(
        base.recipe(state, submodel),
        variate="scaffold",
        apart=state.settings.get("sharing") == "architecture",
    )


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """FedAvg's; of a variate c + (c_i+ - c_i), each device counting once."""
    for part in base.parts(state, plan, update):
        if part.home.startswith(PREFIX):
            part = replace(
                part,
                value=present(state.tensors, part.home, part.shape)[as_slices(part.where)]
                + part.value,
                weight=1.0,
            )
        yield part


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """FedAvg's, the parameters moved eta_g times as far, and the variates by the share of their
    holders that answered.
    """
    after, eta, present_now = (
        base.finish(state, total, rng),
        float(state.settings["server_lr"]),
        holders(state),
    )
    new = dict(after.tensors)
    for home, one in total.sums.items():
        old = present(state.tensors, home, one.value.shape)
        if home.startswith(PREFIX):
            now = present_now.get(home, {})
            before = counted(state.tensors.get(COUNTS + home)) if state.holders else {}
            new[home] = shared(old, new[home], one, now, before)
            if state.holders and now:
                new[COUNTS + home] = table(now)
        elif eta != 1 and PREFIX + home in total.sums:
            new[home] = torch.lerp(old, new[home], eta)
    return replace(after, tensors=new)


def holders(state: State) -> Mapping[str, Cover]:
    """How many devices have each rectangle of each home; a device counts once per coordinate. By
    the present fleet where no record was kept.
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
            for where in united(several):
                known[where] = known.get(where, 0) + count
    return found


def united(rectangles: Collection[Where]) -> list[Where]:
    """Rectangles that cover the same coordinates and do not overlap: of nested ones the
    outermost.
    """
    outer = [
        one
        for one in rectangles
        if not any(one != other and inside(one, other) for other in rectangles)
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


def shared(old: Tensor, average: Tensor, one: Sum, now: Cover, before: Cover) -> Tensor:
    """(N old + |S| (average - old)) / N' per coordinate. now, before: what N' and N are the sums
    of; N is N' where it is not known.

    N' is at least |S|: a device that answered is present, whatever is known of the fleet. A
    coordinate that nobody holds any more was never trained, so it stays 0.
    """
    answered = {where: float(columns[0]) for where, columns in one.cover.items()}
    columns = {
        where: [float(source.get(where, 0)) for source in (answered, now, before)]
        for where in {**answered, **now, **before}
    }
    frame, new = (
        Sum(one.value, {where: list(counts) for where, counts in columns.items()}),
        average.clone(),
    )
    for (band, s), (_, n), (_, b) in zip(
        bands(frame), bands(frame, 1), bands(frame, 2), strict=True
    ):
        here, there = as_slices(band), max(float(n), float(s))
        if s < there:
            new[here] = torch.lerp(old[here], average[here], float(s) / there)
        if b and there and b != there:
            new[here] += old[here] * (float(b) / there - 1)
    return new


def table(cover: Cover) -> Tensor:
    """Rectangles and their counts as int64 [rectangles, 2 axes + 1]."""
    return torch.tensor(
        [[*itertools.chain.from_iterable(where), count] for where, count in cover.items()],
        dtype=torch.int64,
    )


def counted(table: Tensor | None) -> Cover:
    """The inverse of `table`; nothing where there is none."""
    rows = [] if table is None else table.tolist()
    return {tuple(zip(edges[::2], edges[1::2], strict=True)): count for *edges, count in rows}


def scaffold() -> Method:
    plain = base.fedavg()
    return replace(
        plain,
        name="scaffold",
        summary="FedAvg with control variates that take out where each device drifts",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated "
        "Learning, ICML 2020 (arXiv 1910.06378)",
        settings=varied(
            plain.settings,
            momentum=0.0,
            server_lr=Setting(
                1.0,
                "how far the coordinator goes to the mean of the weights; 1: all the way",
                above=0,
            ),
        ),
        forbids={
            "buffered": "a late variate is a gradient of weights of long ago, and the "
            "coordinator's would remember it for ever"
        },
        start=start,
        place=place,
        recipe=recipe,
        parts=parts,
        finish=finish,
        inactive=partial(one_round, effect="all control variates are zero"),
    )
