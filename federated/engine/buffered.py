"""Late updates: what a device learned from an older state, brought onto the present one, each
region by its own age.

A wrapper: of a method it is a method. An update made from version r, of which `sent` went out,
counts at version n as if the device had sent

    value' = present + s(age) (value - sent),    s(age) = (1 + age)^(-1/2)

per coordinate, where age is how many of the aggregations since r folded something into that
coordinate. Nested submodels touch the core of a tensor more often than its outer ring, which only
large devices train, so that ages differ between bands of rectangles. What nobody touched has age 0
and is taken bit for bit as it came. What the method makes of value', and its weight, is the
method's own.

FedBuff (Nguyen et al., arXiv 2106.06639, Algorithm 1) adds up K differences, each times 1/sqrt(1 +
tau), and divides by K, as the mean here does where all who cover a coordinate weigh alike: weights
are not discounted, so that old updates make a smaller step and no other mean. Its tau is n - r for
the whole network; ours is never larger, and smaller where only some devices train. FedAsync (Xie et
al., arXiv 1903.03934, Algorithm 1, s polynomial with a = 1/2) moves by alpha s(tau) towards the
late weights themselves, which takes back what others learned meanwhile. We do so with running
statistics of norms alone, present + s(age) (value - present): they are measurements and no sums of
steps, and a variance stays positive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from federated.engine.aggregate import Part, Total, Weight
from federated.errors import ConfigError
from federated.method import Method, State, Tensors
from federated.task import Update
from models.slicing import Plan, Row, Where, as_slices, present

__all__ = ["Base", "Touched", "ages", "buffered", "discount", "rebased", "touched"]

STATISTICS = ("running_mean", "running_var")

Touched = Mapping[str, Mapping[Where, Weight]]
"""What one aggregation folded into: of each home the rectangles, each with 1, or with a vector of 0
and 1 over axis 0 where rows weigh apart.
"""


@dataclass(frozen=True)
class Base:
    """What an update was made from: the state that it was sent, and what each aggregation since
    then folded into, the oldest first.
    """

    state: State
    since: tuple[Touched, ...]


def buffered(method: Method, past: Callable[[int, int], Base]) -> Method:
    """The method, taking updates of older rounds too. past: by the rounds of two states, what is
    known of the first, as seen from the second.

    ConfigError: the method does not stand late updates.
    """
    if why := method.forbids.get("buffered"):
        raise ConfigError(f"method {method.name} takes no late updates: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        if update.round > state.round:
            return method.parts(state, plan, update)
        base = past(update.round - 1, state.round)
        # where a window rolls on, it is the window of then
        then = method.place(base.state, update.submodel)
        return method.parts(state, then, rebased(state, base, then, update))

    return replace(method, parts=parts)


def discount(age: Weight) -> Weight:
    """s(age): 1 at age 0."""
    return (1.0 + age) ** -0.5


def rebased(state: State, base: Base, plan: Plan, update: Update) -> Update:
    """The update as if it had been made from the present state; tensors that nobody touched since
    are the same objects.
    """
    new = dict(update.tensors)
    for row in plan.rows:
        if row.local in new and (old := aged(base.since, row)):
            if new[row.local] is update.tensors[row.local]:
                new[row.local] = torch.as_tensor(new[row.local]).clone()
            for band, age in old:
                move(new[row.local], row, band, age, base.state.tensors, state.tensors)
    return replace(update, tensors=new)


def aged(since: Sequence[Touched], row: Row) -> list[tuple[Where, Weight]]:
    """The bands of a row's rectangle that were folded into since, each with how often."""
    found = [one[row.home] for one in since if row.home in one]
    return [
        (band, age) for band, age in ages(found, row.there) if isinstance(age, Tensor) or age > 0
    ]


def move(value: Tensor, row: Row, band: Where, age: Weight, then: Tensors, now: Tensors) -> None:
    """Brings one band of a local tensor onto the present state, in place. band: in the home."""
    inner = value[
        tuple(
            slice(h + a - t, h + b - t)
            for (a, b), (h, _), (t, _) in zip(band, row.here, row.there, strict=True)
        )
    ]
    new = present(now, row.home, row.shape)[as_slices(band)]
    old = (
        new
        if row.local.endswith(STATISTICS)
        else present(then, row.home, row.shape)[as_slices(band)]
    )
    share = discount(age)
    if isinstance(share, Tensor):
        share = share.to(inner.dtype).reshape(-1, *[1] * (inner.dim() - 1))
        inner.copy_(torch.where(share == 1, inner, new + share * (inner - old)))
    else:
        inner.sub_(old).mul_(share).add_(new)


def ages(since: Sequence[Mapping[Where, Weight]], where: Where) -> list[tuple[Where, Weight]]:
    """The bands of a rectangle, which never overlap, each with how many aggregations folded into
    it. since: of each, its rectangles in that home.
    """
    inner = [
        {
            cut: rows_of(weight, other, cut)
            for other, weight in one.items()
            if (cut := common(other, where)) is not None
        }
        for one in since
    ]
    if all(one.keys() <= {where} for one in inner):  # all or nothing: no band to cut
        return [(where, sum((one[where] for one in inner if one), start=0.0))]
    edges = [
        sorted({*span, *(edge for one in inner for other in one for edge in other[axis])})
        for axis, span in enumerate(where)
    ]
    return [
        (band, sum((reach(one, band) for one in inner), start=0.0))
        for band in itertools.product(*map(itertools.pairwise, edges))
    ]


def common(one: Where, other: Where) -> Where | None:
    """What two rectangles share, if anything; of scalars, which have no axis, themselves."""
    cut = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return cut if all(a < b for a, b in cut) else None


def rows_of(weight: Weight, other: Where, cut: Where) -> Weight:
    """Of a vector over the rows of one rectangle, those of another inside it."""
    return (
        weight[cut[0][0] - other[0][0] : cut[0][1] - other[0][0]]
        if isinstance(weight, Tensor)
        else weight
    )


def reach(one: Mapping[Where, Weight], band: Where) -> Weight:
    """1 where an aggregation folded into a band, or rows of 0 and 1."""
    inside = (
        (other, mark)
        for other, mark in one.items()
        if all(a <= x and y <= b for (x, y), (a, b) in zip(band, other, strict=True))
    )
    nothing: Weight = 0.0
    return reduce(either, (rows_of(mark, other, band) for other, mark in inside), nothing)


def touched(total: Total, tensors: Tensors) -> dict[str, dict[Where, Weight]]:
    """What a total folded into, of the tensors that came of it; of sums that a method keeps beside
    a home (`HOME/SIZE`, `HOME#zero`) that home.
    """
    found: dict[str, dict[Where, Weight]] = {}
    for key, one in total.sums.items():
        home = key if key in tensors else key.rpartition("/")[0] or key.partition("#")[0]
        if home not in tensors:
            continue
        known = found.setdefault(home, {})
        for where, (weight, *_) in one.cover.items():
            mark = (weight > 0).double() if isinstance(weight, Tensor) else float(weight > 0)
            known[where] = either(known[where], mark) if where in known else mark
    return found


def either(one: Weight, other: Weight) -> Weight:
    """1 where one of two marks is."""
    if not isinstance(one, Tensor) and not isinstance(other, Tensor):
        return max(one, other)
    return torch.maximum(
        torch.as_tensor(one, dtype=torch.float64), torch.as_tensor(other, dtype=torch.float64)
    )
