"""Late updates: move what a device learned from an older state onto the present one, each region by
its own age.

`make_buffered` wraps a method and returns a method. An update made from version r, when the
coordinator sent the weights `sent`, counts at version n as if the device had sent

    value' = present + s(age) (value - sent),    s(age) = (1 + age)^(-1/2)

per coordinate. Its age is the number of aggregations since r that folded something into that
coordinate. Nested submodels touch the core of a tensor more often than its outer ring, which only
large devices train, so bands of rectangles have different ages. Coordinates of age 0 are taken bit
for bit as they came. The method computes its contribution and weight from value' as usual.

FedBuff (Nguyen et al., arXiv 2106.06639, Algorithm 1) adds up K differences, each times
1/sqrt(1 + tau), and divides by K. The mean here does the same if all updates of a coordinate weigh
the same, since weights are not discounted and old updates make a smaller step. FedBuff's tau is
n - r for the whole network; the age is never larger, and smaller where only some devices train.
FedAsync (Xie et al., arXiv 1903.03934, Algorithm 1, polynomial s with a = 1/2) moves by
alpha s(tau) towards the late weights themselves, which undoes what others learned meanwhile. Only
running statistics of norms move that way here, present + s(age) (value - present), since they are
measurements, not sums of steps, and a variance stays positive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from federated.engine.aggregate import Total, is_inside, slice_rows
from federated.engine.blockwise_sums import intersect
from federated.engine.update_contributions import Part, Weight
from federated.errors import ConfigError
from federated.method import Method, State, Tensors
from federated.task import Update
from models.slicing import Plan, Row, Where, as_slices, read_home

__all__ = ["Base", "Touched", "ages", "discount", "find_touched", "make_buffered", "rebase_update"]

STATISTICS = ("running_mean", "running_var")

Touched = Mapping[str, Mapping[Where, Weight]]
"""Rectangles that one aggregation folded into, by home. The value is 1, or a vector of 0 and 1 over
axis 0 where rows are weighted separately.
"""


@dataclass(frozen=True)
class Base:
    """State that an update was made from.

    state: the state that its device received
    since: what each aggregation since then folded into, oldest first
    """

    state: State
    since: tuple[Touched, ...]


def make_buffered(method: Method, past: Callable[[int, int], Base]) -> Method:
    """Return the method, extended to accept updates of older rounds.

    past: returns the base of an update, from the rounds of its own state and of the present one
    ConfigError: the method does not support late updates.
    """
    if why := method.forbids.get("buffered"):
        raise ConfigError(f"method {method.name} does not support late updates: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterable[Part]:
        if update.round > state.round:
            return method.parts(state, plan, update)
        base = past(update.round - 1, state.round)
        # a rolling window has the place of the round that the update started from
        then = method.place(base.state, update.submodel)
        return method.parts(state, then, rebase_update(state, base, then, update))

    return replace(method, parts=parts)


def discount(age: Weight) -> Weight:
    """Return s(age); 1 at age 0."""
    return (1.0 + age) ** -0.5


def rebase_update(state: State, base: Base, plan: Plan, update: Update) -> Update:
    """Return the update as if it had been made from the present state. Untouched tensors stay the
    same objects.
    """
    new = dict(update.tensors)
    for row in plan.rows:
        if row.local in new and (stale := stale_bands(base.since, row)):
            if new[row.local] is update.tensors[row.local]:
                new[row.local] = torch.as_tensor(new[row.local]).clone()
            for band, age in stale:
                move(new[row.local], row, band, age, base.state.tensors, state.tensors)
    return replace(update, tensors=new)


def stale_bands(since: Sequence[Touched], row: Row) -> list[tuple[Where, Weight]]:
    """Return the bands of a row's rectangle that were folded into since, each with its age."""
    found = [one[row.home] for one in since if row.home in one]
    return [
        (band, age) for band, age in ages(found, row.there) if isinstance(age, Tensor) or age > 0
    ]


def move(value: Tensor, row: Row, band: Where, age: Weight, then: Tensors, now: Tensors) -> None:
    """Move one band of a local tensor onto the present state, in place. band: in the home."""
    inner = value[
        tuple(
            slice(h + a - t, h + b - t)
            for (a, b), (h, _), (t, _) in zip(band, row.here, row.there, strict=True)
        )
    ]
    new = read_home(now, row.home, row.shape)[as_slices(band)]
    old = (
        new
        if row.local.endswith(STATISTICS)
        else read_home(then, row.home, row.shape)[as_slices(band)]
    )
    share = discount(age)
    if isinstance(share, Tensor):
        share = share.to(inner.dtype).reshape(-1, *[1] * (inner.dim() - 1))
        inner.copy_(torch.where(share == 1, inner, new + share * (inner - old)))
    else:
        inner.sub_(old).mul_(share).add_(new)


def ages(since: Sequence[Mapping[Where, Weight]], where: Where) -> list[tuple[Where, Weight]]:
    """Return the bands of a rectangle, which never overlap, each with the number of aggregations
    that folded into it.

    since: rectangles of the home, by aggregation
    """
    inner = [
        {
            cut: slice_rows(weight, cut, other)
            for other, weight in one.items()
            if (cut := intersect(other, where)) is not None
        }
        for one in since
    ]
    if all(one.keys() <= {where} for one in inner):  # each covers all of it or nothing
        return [(where, sum((one[where] for one in inner if one), start=0.0))]
    edges = [
        sorted({*span, *(edge for one in inner for other in one for edge in other[axis])})
        for axis, span in enumerate(where)
    ]
    return [
        (band, sum((covers(one, band) for one in inner), start=0.0))
        for band in itertools.product(*map(itertools.pairwise, edges))
    ]


def covers(one: Mapping[Where, Weight], band: Where) -> Weight:
    """Return 1 if an aggregation folded into a band, 0 if not, or a vector of 0 and 1 over its
    rows.
    """
    marks = (slice_rows(mark, band, where) for where, mark in one.items() if is_inside(band, where))
    untouched: Weight = 0.0
    return reduce(merge_marks, marks, untouched)


def find_touched(total: Total, tensors: Tensors) -> dict[str, dict[Where, Weight]]:
    """Return the rectangles that a total contains, with their weights, for each home in `tensors`.
    Additional sums of a home (`HOME/SIZE`, `HOME#zero`) count for that home.
    """
    found: dict[str, dict[Where, Weight]] = {}
    for key, one in total.sums.items():
        home = key if key in tensors else key.rpartition("/")[0] or key.partition("#")[0]
        if home not in tensors:
            continue
        known = found.setdefault(home, {})
        for where, (weight, *_) in one.cover.items():
            mark = (weight > 0).double() if isinstance(weight, Tensor) else float(weight > 0)
            known[where] = merge_marks(known[where], mark) if where in known else mark
    return found


def merge_marks(one: Weight, other: Weight) -> Weight:
    """Return 1 where either of two marks is 1."""
    if not isinstance(one, Tensor) and not isinstance(other, Tensor):
        return max(one, other)
    return torch.maximum(
        torch.as_tensor(one, dtype=torch.float64), torch.as_tensor(other, dtype=torch.float64)
    )
