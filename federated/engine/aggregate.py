"""The one fold: adds what updates contribute, as they come, and divides by how much of it there
was.

A home has one full-size sum, and beside it the weights per distinct rectangle: no map of counts,
and memory of one model however many devices there are. At the end the axes are cut at the
rectangles' edges, and each band is divided by the weight that covers it. Totals can be merged, and
written down and read back bit for bit. Floats are added in the order of the calls: who wants a run
to repeat exactly folds in a fixed order. Merging is associative and commutative up to that
rounding.

Sums are float32, as the weights are: of n parts the relative error stays near n x 6e-8, far under
the noise of training. Sums of weights are float64, so that counts of examples stay exact. A float64
or integer part makes the sum of its home float64.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.slicing import Where, as_slices

__all__ = [
    "Key",
    "Part",
    "Sum",
    "Total",
    "Weight",
    "bands",
    "dump",
    "extra",
    "fold",
    "inside",
    "load",
    "mean",
    "merge",
]

Key = tuple[str | int, ...]
"""Names one contribution; of a key the first is folded and no other."""

Weight = float | Tensor
"""One number, or a float64 vector over axis 0 of a rectangle."""


@dataclass(frozen=True)
class Part:
    """One rectangle of one home, as one update gives it: adds weight x scale x value to the sum,
    and weight to what it is divided by.

    home, where, shape: the home, the rectangle in it, and the home's whole shape. value: tensor of
    the rectangle's shape.
    weight: one number, or a vector over axis 0 of the rectangle. extra: further numbers, summed per
    rectangle beside the weight.
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    value: Tensor
    weight: float | Tensor = 1.0
    scale: float = 1.0
    extra: tuple[float, ...] = ()


@dataclass
class Sum:
    """value: sum of weight x scale x value, full size. cover: per distinct rectangle the sums of
    the weights and of each extra.
    """

    value: Tensor
    cover: dict[Where, list[Weight]] = field(default_factory=dict)


@dataclass
class Total:
    """sums: by home. seen: the keys folded, in order."""

    sums: dict[str, Sum] = field(default_factory=dict)
    seen: dict[Key, None] = field(default_factory=dict)


def fold(total: Total, parts: Iterable[Part], key: Key) -> bool:
    """Adds parts to `total`, in place; False, and nothing added, where the key was folded before.

    ValueError: a part does not fit its home; then nothing at all is added.
    """
    if key in total.seen:
        return False
    parts = list(parts)  # values are views, so this holds one update and no copy of it
    for part in parts:
        check(total, part)
    for part in parts:
        add(total, part)
    total.seen[key] = None
    return True


def check(total: Total, part: Part) -> None:
    known = total.sums.get(part.home)
    shape = part.shape if known is None else tuple(known.value.shape)
    inside = len(part.where) == len(shape) and all(
        0 <= a < b <= n for (a, b), n in zip(part.where, shape, strict=True)
    )
    if (
        part.shape != shape
        or not inside
        or tuple(part.value.shape) != tuple(b - a for a, b in part.where)
    ):
        raise ValueError(
            f"part of {part.home}: {tuple(part.value.shape)} at {part.where} of "
            f"{part.shape} does not fit a home of {shape}"
        )
    rows = tuple(part.weight.shape) if isinstance(part.weight, Tensor) else None
    if rows is not None and rows != tuple(part.value.shape[:1]):
        raise ValueError(
            f"part of {part.home}: weights of shape {rows} for {part.value.shape[0]} rows"
        )
    columns = None if known is None else len(next(iter(known.cover.values())))
    if columns not in {None, 1 + len(part.extra)}:
        raise ValueError(
            f"part of {part.home}: {len(part.extra)} extras where others gave "
            f"{columns}, the weight included"
        )


def add(total: Total, part: Part) -> None:
    value = part.value if part.value.is_floating_point() else part.value.double()
    known = total.sums.get(part.home)
    if known is None:
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        known = total.sums[part.home] = Sum(torch.zeros(part.shape, dtype=wide))
    view = known.value[as_slices(part.where)]
    if isinstance(part.weight, Tensor):
        rows = (
            (part.weight.double() * part.scale).to(view.dtype).reshape(-1, *[1] * (view.dim() - 1))
        )
        view.addcmul_(value.to(view.dtype), rows)
        weight: Weight = part.weight.double()
    else:
        view.add_(value, alpha=part.weight * part.scale)
        weight = float(part.weight)
    known.cover[part.where] = added(known.cover.get(part.where), [weight, *map(float, part.extra)])


def added(old: list[Weight] | None, new: list[Weight]) -> list[Weight]:
    return list(new) if old is None else [a + b for a, b in zip(old, new, strict=True)]


def merge(into: Total, other: Total) -> Total:
    """Adds one total to another, in place, and returns it; `other` must not be used afterwards.
    ValueError: both folded the same key.
    """
    if twice := into.seen.keys() & other.seen.keys():
        raise ValueError(f"totals cannot be merged: both folded {sorted(map(str, twice))[:4]}")
    for home, theirs in other.sums.items():
        mine = into.sums.get(home)
        if mine is None:
            into.sums[home] = theirs
            continue
        if mine.value.dtype == torch.float32:
            mine.value = mine.value.to(theirs.value.dtype)
        mine.value.add_(theirs.value)
        for where, columns in theirs.cover.items():
            mine.cover[where] = added(mine.cover.get(where), columns)
    into.seen.update(other.seen)
    return into


def bands(total: Sum, column: int = 0) -> Iterator[tuple[Where, Weight]]:
    """The covered rectangles that never overlap, each with the sum of the weights (or of an extra)
    that cover it.

    The axes are cut at the edges of all rectangles: n nested corners of a matrix make n x n bands.
    """
    axes = range(total.value.dim())
    edges = [sorted({e for where in total.cover for e in where[axis]}) for axis in axes]
    for band in itertools.product(*(itertools.pairwise(e) for e in edges)):
        covering = [
            (where, columns[column])
            for where, columns in total.cover.items()
            if inside(band, where)
        ]
        if covering:
            yield band, sum((part_of(weight, band, where) for where, weight in covering), start=0.0)


def inside(band: Where, where: Where) -> bool:
    return all(a <= x and y <= b for (x, y), (a, b) in zip(band, where, strict=True))


def part_of(weight: Weight, band: Where, where: Where) -> Weight:
    """Of a weight per row, the rows of a band."""
    return (
        weight[band[0][0] - where[0][0] : band[0][1] - where[0][0]]
        if isinstance(weight, Tensor)
        else weight
    )


def mean(total: Sum, old: Tensor | None = None) -> Tensor:
    """Per coordinate the sum over the weight that covers it, in the dtype of `old`; what nobody
    covers keeps the old value bit for bit.

    An integer tensor truncates. ValueError: a coordinate is uncovered and there is no old value.
    """
    out = torch.full_like(total.value, math.nan) if old is None else old.clone()
    for band, weight in bands(total):
        target, value = out[as_slices(band)], total.value[as_slices(band)]
        if isinstance(weight, Tensor):
            column = weight.reshape(-1, *[1] * (value.dim() - 1))
            target.copy_(
                torch.where(column > 0, value / column.clamp(min=1e-300), target).to(target.dtype)
            )
        elif weight > 0:
            target.copy_(value / weight)
    if old is None and bool(out.isnan().any()):
        raise ValueError(
            "a mean without an old value: some coordinates are covered by nobody, or "
            "the sum holds NaN"
        )
    return out


def extra(total: Sum, column: int) -> float:
    """Sum of the `column`-th extra (from 1) over all parts of a home."""
    return float(sum(float(columns[column]) for columns in total.cover.values()))


def dump(total: Total) -> tuple[dict[str, Tensor], str]:
    """A total as tensors by home and a JSON text: no pickle, and `load` gives the same bits."""
    cover = {
        home: [
            [where, [w.tolist() if isinstance(w, Tensor) else w for w in columns]]
            for where, columns in one.cover.items()
        ]
        for home, one in total.sums.items()
    }
    return {home: one.value for home, one in total.sums.items()}, json.dumps(
        {"seen": list(total.seen), "cover": cover}
    )


def load(tensors: Mapping[str, Tensor], text: str) -> Total:
    """The total that was dumped. KeyError, ValueError: tensors and text do not belong together."""
    found = json.loads(text)
    if tensors.keys() != found["cover"].keys():
        raise ValueError(f"a dumped total: {len(tensors)} tensors, of {len(found['cover'])} homes")
    total = Total(seen={tuple(key): None for key in found["seen"]})
    for home, rows in found["cover"].items():
        cover = {
            tuple((a, b) for a, b in where): [restored(w) for w in columns]
            for where, columns in rows
        }
        total.sums[home] = Sum(tensors[home].clone(), cover)
    return total


def restored(weight: float | list[float]) -> Weight:
    return torch.tensor(weight, dtype=torch.float64) if isinstance(weight, list) else weight
