"""Add up the updates of a round, which may have different sizes, and compute their mean per
coordinate.

Each home (a tensor of the coordinator's state) has one full-size sum, and one weight per distinct
rectangle (a box of it that some updates cover). Memory is that of one model, however many devices
there are. For the mean, the axes are cut at the edges of the rectangles, and each band is divided
by the weight that covers it. Totals can be dumped and loaded bit for bit.

Floats are added in the order of the calls: fold in a fixed order for a reproducible run. Sums of
several groups of updates, added up, would differ from it in the last bits.

Sums are float32, as the weights are: the relative error of n parts stays near n x 6e-8, far below
the noise of training. Sums of weights are float64, so that counts of examples stay exact. A float64
or integer part makes the sum of its home float64.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from federated.engine import blockwise_sums
from federated.engine.blockwise_sums import (
    Blocks,
    Layout,
    Placed,
    compile_rows,
    find_layout,
    pack,
)
from federated.engine.contribution_checks import check_outlines, check_weight, outline_part
from federated.engine.fused_addition import add_blockwise
from federated.engine.update_contributions import Part, RowParts, Weight
from models.slicing import Row, Where, as_slices, corner

__all__ = [
    "Key",
    "Sum",
    "Total",
    "bands",
    "dump",
    "fold",
    "is_inside",
    "load",
    "mean",
    "sum_extra",
]

Key = tuple[str | int, ...]
"""Name of one contribution; only the first one with a given key is folded."""


@dataclass
class Sum:
    """Sum of all parts of one home.

    value: sum of weight x scale x value, of the home's full size
    cover: sums of the weights and of each extra, by distinct rectangle
    spent: True if `value` was overwritten by its mean
    """

    value: Tensor
    cover: dict[Where, list[Weight]] = field(default_factory=dict)
    spent: bool = False

    @property
    def extras(self) -> int:
        """Number of extras of each part."""
        return len(next(iter(self.cover.values()))) - 1


class Total:
    """Sums of all updates.

    seen: keys of the folded updates, in order
    most: updates that may wait until they are added together; with 1, each is added at once
    """

    def __init__(
        self,
        sums: dict[str, Sum] | None = None,
        seen: dict[Key, None] | None = None,
        most: int = 1,
    ) -> None:
        self.seen, self.most = {} if seen is None else seen, most
        self._sums = {} if sums is None else sums
        self._blocks = Blocks()
        self._compiled: dict[tuple[object, ...], Compiled] = {}
        self._waiting: list[tuple[Compiled, Tensor, RowParts]] = []
        self._new: dict[int, list[Tensor]] = {}  # pieces that hold any values

    @property
    def sums(self) -> dict[str, Sum]:
        """The sums by home, of all folded updates."""
        self.settle()
        self._blocks, self._compiled = Blocks(), {}  # the caller may replace a sum
        return self._sums

    def settle(self) -> None:
        """Add the updates that wait."""
        waiting, self._waiting = self._waiting, []
        new, self._new = self._new, {}
        if waiting or new:  # a fold that was interrupted leaves new pieces, and no update
            updates = [(one.placed, flat, one.factors(update)) for one, flat, update in waiting]
            add_blockwise(updates, new)

    def queue(self, update: RowParts) -> bool:
        """Take an update whose tensors lie in one buffer, to be added with others. Return False if
        they do not. UnfitPart: a part does not fit its home, or a weight is invalid.
        """
        for terms in (update.terms, *update.own.values()):
            check_weight(terms.weight)
        found = find_layout(update.tensors)
        if found is None or isinstance(update.terms.weight, Tensor):
            return False
        flat, layout = found
        key = (id(update.rows), layout, update.forms)  # `Compiled` keeps the rows alive
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(update, layout)
            if compiled is None:
                return False
            if len(self._compiled) >= blockwise_sums.COMPILED:
                self._compiled.clear()
            self._compiled[key] = compiled
        compiled.count(update)
        self._waiting.append((compiled, flat, update))
        if len(self._waiting) >= self.most:
            self.settle()
        return True

    def _compile(self, update: RowParts, layout: Layout) -> Compiled | None:
        """Compile the additions of all updates with these rows, layout and forms; None if a sum is
        not float32.
        """
        rows = tuple(row for row in update.rows if row.local in update.tensors)
        for home in dict.fromkeys(row.home for row in rows):
            known = self._sums.get(home)
            if known is not None and not self._blocks.include(home, known.value, known.extras):
                return None
        block = blockwise_sums.BLOCK
        program = compile_rows(self._blocks.places, rows, layout, update.forms, block)
        for home, value in pack({home: shape for home, (shape, _) in program.new.items()}).items():
            self._sums[home] = Sum(value)
            self._blocks.include(home, value, program.new[home][1])
        for number, pieces in self._blocks.cut(program.new).items():
            self._new.setdefault(number, []).extend(pieces)
        covers = [(row.local, row.there, self._sums[row.home].cover) for row in rows]
        return Compiled(update.rows, rows, self._blocks.place(program), covers)


@dataclass(frozen=True)
class Compiled:
    """The additions that all updates with the same rows, layout and forms share.

    plan: all rows of the plan
    rows: those whose tensors the updates hold
    placed: their additions, by block
    covers: local name, rectangle, and sums of weights, of each of these rows
    """

    plan: tuple[Row, ...]
    rows: tuple[Row, ...]
    placed: Placed
    covers: Sequence[tuple[str, Where, dict[Where, list[Weight]]]]

    def factors(self, update: RowParts) -> list[Weight]:
        """Return the factor of the values of each row."""
        usual = update.terms.factor
        own = {name: terms.factor for name, terms in update.own.items()}
        return [own.get(row.local, usual) for row in self.rows]

    def count(self, update: RowParts) -> None:
        """Add the weights and extras of an update to those of the rectangles."""
        usual = update.terms.columns
        own = {name: terms.columns for name, terms in update.own.items()}
        for local, where, cover in self.covers:
            cover[where] = add_columns(cover.get(where), own.get(local, usual))


def fold(total: Total, parts: Iterable[Part], key: Key) -> bool:
    """Add the parts of an update to `total`, in place. Return False, and add nothing, if the key
    was folded before.

    UnfitPart: a part does not fit its home, or a weight is invalid; nothing is added.
    """
    if key in total.seen:
        return False
    if not (isinstance(parts, RowParts) and total.queue(parts)):
        total.settle()
        parts = list(parts)  # views, so that this holds one update and no copy of it
        check(total, parts)
        for part in parts:
            add(total, part)
    total.seen[key] = None
    return True


def check(total: Total, parts: Iterable[Part]) -> None:
    """Raise UnfitPart if a part of an update does not fit its home, or has an invalid weight."""
    found = list(parts)
    for part in found:
        check_weight(part.weight)
    sums = {one.home: total._sums[one.home] for one in found if one.home in total._sums}
    known = {home: (tuple(one.value.shape), one.extras) for home, one in sums.items()}
    check_outlines(map(outline_part, found), known)


def add(total: Total, part: Part) -> None:
    """Add one part to its home's sum."""
    value = part.value if part.value.is_floating_point() else part.value.double()
    known = total._sums.get(part.home)
    if known is None:
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        known = total._sums[part.home] = Sum(torch.zeros(part.shape, dtype=wide))
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


def bands(total: Sum, column: int = 0) -> Iterator[tuple[Where, Weight]]:
    """Yield the covered rectangles, which never overlap, each with the sum of the weights (or of an
    extra) that cover it.

    The axes are cut at the edges of all rectangles: n nested corners of a matrix make n x n bands.
    """
    for band, weight in tiles(total, total.cover, column):
        if any(is_inside(band, where) for where in total.cover):
            yield band, weight


def tiles(total: Sum, rectangles: Collection[Where], column: int) -> Iterator[tuple[Where, Weight]]:
    """Cut the axes at the edges of all rectangles. Yield each piece with the sum of the weights (or
    of an extra) that cover it; 0 if none does.
    """
    axes = range(total.value.dim())
    edges = [sorted({e for where in rectangles for e in where[axis]}) for axis in axes]
    for tile in itertools.product(*(itertools.pairwise(e) for e in edges)):
        covering = (
            slice_rows(columns[column], tile, where)
            for where, columns in total.cover.items()
            if is_inside(tile, where)
        )
        yield tile, sum(covering, start=0.0)


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

    The mean takes the place of the sum's values if their dtypes are equal, which saves the memory
    of another model: read `value` only before. Its rectangles and weights stay. Integer tensors
    truncate. ValueError: a coordinate is uncovered and there is no old value, or the mean was
    computed before.
    """
    if total.spent:
        raise ValueError("expected a sum, found its mean, which was computed before in its place")
    sums, total.spent = total.value, True
    out = sums if old is None or old.dtype == sums.dtype else torch.empty_like(old)
    for where, weight in regions(total):
        here = as_slices(where)
        target = out[here]
        if not isinstance(weight, Tensor) and weight > 0:
            target.div_(weight) if out is sums else target.copy_(sums[here] / weight)
            continue
        kept = torch.full_like(target, math.nan) if old is None else old[here]
        if isinstance(weight, Tensor):
            value = sums[here]
            column = weight.reshape(-1, *[1] * (value.dim() - 1))
            value = torch.where(column > 0, value / column.clamp(min=1e-300), kept)
            target.copy_(value.to(target.dtype))
        else:
            target.copy_(kept)
    if old is None and bool(out.isnan().any()):
        raise ValueError(
            "cannot compute a mean: no update covers some coordinates, which have no old value, or "
            "the sum holds NaN"
        )
    return out


def regions(total: Sum) -> Iterator[tuple[Where, Weight]]:
    """Yield rectangles that fill a home and do not overlap, each with the weight to divide by; 0 if
    nothing covers it.

    Nested rectangles need few, where there would be many `bands`.
    """
    whole = corner(total.value.shape)
    if total.cover.keys() == {whole}:
        yield whole, total.cover[whole][0]
        return
    numbers = not any(isinstance(columns[0], Tensor) for columns in total.cover.values())
    nested = sorted(total.cover, key=lambda where: [b - a for a, b in where], reverse=True)
    if numbers and all(is_inside(b, a) for a, b in itertools.pairwise(nested)):
        for where, inner in itertools.pairwise([whole, *nested, None]):
            assert where is not None
            outer = (w for w in total.cover if is_inside(where, w))
            weight = sum((total.cover[w][0] for w in outer), start=0.0)
            yield from ((piece, weight) for piece in cut_out(where, inner))
    else:
        yield from tiles(total, [whole, *total.cover], 0)


def cut_out(where: Where, inner: Where | None) -> Iterator[Where]:
    """Yield rectangles that together are a rectangle without another one inside it, if any."""
    if inner is None:
        yield where
        return
    for axis, ((start, stop), (first, last)) in enumerate(zip(where, inner, strict=True)):
        for piece in ((start, first), (last, stop)):
            if piece[0] < piece[1]:
                yield (*inner[:axis], piece, *where[axis + 1 :])


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
    sums = dict[str, Sum]()
    for home, rows in found["cover"].items():
        cover = {
            tuple((a, b) for a, b in where): [
                torch.tensor(w, dtype=torch.float64) if isinstance(w, list) else w for w in columns
            ]
            for where, columns in rows
        }
        sums[home] = Sum(tensors[home].clone(), cover)
    return Total(sums, {tuple(key): None for key in found["seen"]})
