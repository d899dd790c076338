"""Sums of what updates contribute, and their means.

Each home has one full-size sum, and one weight per distinct rectangle folded into it. Memory is
that of one model, however many devices there are. For the mean, the axes are cut at the edges of
the rectangles, and each band is divided by the weight that covers it. Totals can be merged, dumped
and loaded bit for bit.

Floats are added in the order of the calls: fold in a fixed order for a reproducible run. Merging is
associative and commutative up to rounding.

Sums are float32, as the weights are: the relative error of n parts stays near n x 6e-8, far below
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
    "fold",
    "is_inside",
    "load",
    "mean",
    "merge",
    "sum_extra",
]

Key = tuple[str | int, ...]
"""Name of one contribution; only the first one with a given key is folded."""

Weight = float | Tensor
"""One number, or a float64 vector over axis 0 of a rectangle."""


@dataclass(frozen=True)
class Part:
    """One rectangle of one home in one update. It adds weight x scale x value to the sum, and
    weight to the divisor.

    home: name of the home
    where: rectangle within it
    shape: shape of the whole home
    value: tensor of the rectangle's shape
    weight: one number, or a vector over axis 0 of the rectangle
    scale: factor of the value alone
    extra: further numbers, summed per rectangle beside the weight
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
    """Sum of all parts of one home.

    value: sum of weight x scale x value, of the home's full size
    cover: sums of the weights and of each extra, by distinct rectangle
    """

    value: Tensor
    cover: dict[Where, list[Weight]] = field(default_factory=dict)


@dataclass
class Total:
    """Sums of all updates.

    sums: by home
    seen: keys of the folded updates, in order
    """

    sums: dict[str, Sum] = field(default_factory=dict)
    seen: dict[Key, None] = field(default_factory=dict)


def fold(total: Total, parts: Iterable[Part], key: Key) -> bool:
    """Add the parts of an update to `total`, in place. Return False, and add nothing, if the key
    was folded before.

    ValueError: a part does not fit its home; nothing is added.
    """
    if key in total.seen:
        return False
    parts = list(parts)  # views, so that this holds one update and no copy of it
    for part in parts:
        check(total, part)
    for part in parts:
        add(total, part)
    total.seen[key] = None
    return True


def check(total: Total, part: Part) -> None:
    """Raise ValueError if a part does not fit its home."""
    known = total.sums.get(part.home)
    shape = part.shape if known is None else tuple(known.value.shape)
    fits = len(part.where) == len(shape) and all(
        0 <= a < b <= n for (a, b), n in zip(part.where, shape, strict=True)
    )
    if (
        part.shape != shape
        or not fits
        or tuple(part.value.shape) != tuple(b - a for a, b in part.where)
    ):
        raise ValueError(
            f"part of {part.home}: values of shape {tuple(part.value.shape)} at {part.where} of "
            f"{part.shape} do not fit a home of shape {shape}"
        )
    rows = tuple(part.weight.shape) if isinstance(part.weight, Tensor) else None
    if rows is not None and rows != tuple(part.value.shape[:1]):
        raise ValueError(
            f"part of {part.home}: expected one weight for each of {part.value.shape[0]} rows, "
            f"found weights of shape {rows}"
        )
    columns = None if known is None else len(next(iter(known.cover.values())))
    if columns is not None and columns != 1 + len(part.extra):
        raise ValueError(
            f"part of {part.home}: expected {columns - 1} extras as in earlier parts, "
            f"found {len(part.extra)}"
        )


def add(total: Total, part: Part) -> None:
    """Add one part to its home's sum."""
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
    known.cover[part.where] = add_columns(
        known.cover.get(part.where), [weight, *map(float, part.extra)]
    )


def add_columns(old: list[Weight] | None, new: list[Weight]) -> list[Weight]:
    """Add up columns of weights."""
    return list(new) if old is None else [a + b for a, b in zip(old, new, strict=True)]


def merge(into: Total, other: Total) -> Total:
    """Add `other` to `into`, in place, and return it. Do not use `other` afterwards.

    ValueError: both totals contain the same key.
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
            mine.cover[where] = add_columns(mine.cover.get(where), columns)
    into.seen.update(other.seen)
    return into


def bands(total: Sum, column: int = 0) -> Iterator[tuple[Where, Weight]]:
    """Yield the covered rectangles, which never overlap, each with the sum of the weights (or of an
    extra) that cover it.

    The axes are cut at the edges of all rectangles: n nested corners of a matrix make n x n bands.
    """
    axes = range(total.value.dim())
    edges = [sorted({e for where in total.cover for e in where[axis]}) for axis in axes]
    for band in itertools.product(*(itertools.pairwise(e) for e in edges)):
        covering = [
            (where, columns[column])
            for where, columns in total.cover.items()
            if is_inside(band, where)
        ]
        if covering:
            yield (
                band,
                sum((slice_rows(weight, band, where) for where, weight in covering), start=0.0),
            )


def is_inside(band: Where, where: Where) -> bool:
    """Return True if one rectangle lies within another."""
    return all(a <= x and y <= b for (x, y), (a, b) in zip(band, where, strict=True))


def slice_rows(weight: Weight, band: Where, where: Where) -> Weight:
    """Return the rows of a band inside a rectangle, where there is one weight per row."""
    if not isinstance(weight, Tensor):
        return weight
    return weight[band[0][0] - where[0][0] : band[0][1] - where[0][0]]


def mean(total: Sum, old: Tensor | None = None) -> Tensor:
    """Return the sum divided by the weight that covers it, per coordinate, in the dtype of `old`.
    Coordinates that no part covers keep their old value bit for bit.

    Integer tensors truncate. ValueError: a coordinate is uncovered and there is no old value.
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
            "cannot compute a mean: no update covers some coordinates, which have no old value, or "
            "the sum holds NaN"
        )
    return out


def sum_extra(total: Sum, column: int) -> float:
    """Return the sum of the `column`-th extra (from 1) over all parts of a home."""
    return float(sum(float(columns[column]) for columns in total.cover.values()))


def dump(total: Total) -> tuple[dict[str, Tensor], str]:
    """Return a total as tensors by home and a JSON text, from which `load` makes the same bits."""
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
    """Return the total that `dump` wrote. KeyError, ValueError: tensors and text do not belong
    together.
    """
    found = json.loads(text)
    if tensors.keys() != found["cover"].keys():
        raise ValueError(
            f"dumped total: {len(tensors)} tensors do not match its {len(found['cover'])} homes"
        )
    total = Total(seen={tuple(key): None for key in found["seen"]})
    for home, rows in found["cover"].items():
        cover = {
            tuple((a, b) for a, b in where): [
                torch.tensor(w, dtype=torch.float64) if isinstance(w, list) else w for w in columns
            ]
            for where, columns in rows
        }
        total.sums[home] = Sum(tensors[home].clone(), cover)
    return total
