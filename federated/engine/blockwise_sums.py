"""Cut sums into blocks, and compile what updates that lie in flat buffers add to each, so that
several updates read and write each sum in memory once.

The rows of a plan are compiled into additions: pieces of an update's buffer, each with the piece of
a sum that it is added to. They are numbers, so that all rounds with equal rows share them.
Neighbouring tensors become one addition. A block is a group of pieces of the sums that fits the
processor's cache. Every entry is added in the order of the updates, so the bits do not depend on
how many updates are added together, on the blocks, or on the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from federated.engine.contribution_checks import Outline, check_outlines
from federated.engine.reusable_memory import lend_memory
from federated.engine.update_contributions import Form, Forms, Weight
from models.slicing import Row, Where, corner
from models.slicing import blocks as cut

__all__ = [
    "Addition",
    "Blocks",
    "Layout",
    "Pieces",
    "Placed",
    "compile_rows",
    "find_layout",
    "intersect",
    "join_spans",
    "pack",
]

BLOCK = 1 << 19  # entries of the sums in one block
ALIGNMENT = 16  # entries, as in an encoded update
COMPILED = 64  # programs that are kept
ZERO = torch.zeros(())

Layout = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Name, offset in entries, and shape of each tensor in a flat buffer."""


def find_layout(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Layout] | None:
    """Return the flat float32 buffer that all tensors are contiguous views of, with their places;
    None if there is none.
    """
    base = getattr(next(iter(tensors.values()), None), "_base", None)
    if (
        not isinstance(base, Tensor)
        or base.dim() != 1
        or base.dtype != torch.float32
        or base.stride() != (1,)
    ):
        return None
    flat: Tensor = base
    places = list[tuple[str, int, tuple[int, ...]]]()
    for name, value in tensors.items():
        if (
            getattr(value, "_base", None) is not base
            or value.dtype != torch.float32
            or not value.is_contiguous()
        ):
            return None
        places.append((name, int(value.storage_offset()), tuple(value.shape)))
    return flat, tuple(places)


def pack(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return tensors with any values, side by side in one buffer, aligned as in an encoded
    update.
    """
    counts = [aligned_size(shape) for shape in shapes.values()]
    flat = lend_memory(sum(counts))
    starts = itertools.accumulate(counts, initial=0)
    return {
        name: flat[start : start + math.prod(shape)].view(shape)
        for (name, shape), start in zip(shapes.items(), starts, strict=False)
    }


def aligned_size(shape: tuple[int, ...]) -> int:
    """Return the number of entries that a tensor takes in a buffer."""
    return -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT


class Place(NamedTuple):
    """Where the sum of a home lies.

    home, shape: its name and shape
    extras: number of extras of its parts
    buffer, start: number of the buffer, and first entry in it
    """

    home: str
    shape: tuple[int, ...]
    extras: int
    buffer: int
    start: int


@dataclass(frozen=True)
class Addition:
    """One addition. Sizes, strides and offsets are in entries.

    row: index of the row, whose factor counts
    fills: True if the row covers its whole home, so that only padding follows up to the next home
    span: rows of the rectangle (axis 0) that it covers, where each has a factor of its own
    size: of the rectangle
    buffer, target, start: number of the sums' buffer, strides and offset in it
    stride, offset: strides and offset of the values in the update's buffer
    """

    row: int
    fills: bool
    span: slice
    size: tuple[int, ...]
    buffer: int
    target: tuple[int, ...]
    start: int
    stride: tuple[int, ...]
    offset: int

    def add(self, target: Tensor, flat: Tensor, factor: Weight, store: bool) -> None:
        """Add the values of an update's buffer to the piece of a sum. store: replace the piece
        instead, by values times one factor.
        """
        values = flat.as_strided(self.size, self.stride, self.offset)
        if isinstance(factor, Tensor):
            rows = factor[self.span].to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
            target.addcmul_(values, rows)
        elif store:
            torch.add(ZERO, values, alpha=factor, out=target)
        else:
            target.add_(values, alpha=factor)


@dataclass(frozen=True)
class Program:
    """What the rows of a plan add, for all updates with the same layout and forms.

    new: shape and number of extras of each home without a sum
    additions: by index of the block
    """

    new: Mapping[str, tuple[tuple[int, ...], int]]
    additions: Mapping[int, Sequence[Addition]]


Pieces = Mapping[int, Sequence[Tensor]]
"""Pieces of sums, by index of the block."""

Placed = Mapping[int, Sequence[tuple[Tensor, Addition]]]
"""The additions of a program, each with its piece of a sum, by index of the block."""


class Blocks:
    """The sums of a total, cut into blocks.

    places: of the sums, in the order in which they were included
    """

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()
        self._known = set[str]()
        self._buffers: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # of the buffers, by their address

    def include(self, home: str, value: Tensor, extras: int) -> bool:
        """Include the sum of a home, unless it is. Return False if it is not in contiguous
        float32.
        """
        if home in self._known:
            return True
        if value.dtype != torch.float32 or not value.is_contiguous():
            return False
        address = value.untyped_storage().data_ptr()
        number = self._numbers.setdefault(address, len(self._buffers))
        if number == len(self._buffers):
            self._buffers.append(value)
        self._known.add(home)
        place = Place(home, tuple(value.shape), extras, number, int(value.storage_offset()))
        self.places = (*self.places, place)
        return True

    def place(self, program: Program) -> Placed:
        """Return the additions with their pieces of the sums."""
        return {
            block: [
                (self._buffers[one.buffer].as_strided(one.size, one.target, one.start), one)
                for one in additions
            ]
            for block, additions in program.additions.items()
        }

    def cut(self, homes: Collection[str]) -> Pieces:
        """Return the pieces of some homes' sums, by block. Neighbours are one piece."""
        pieces = divide(self.places, BLOCK) if homes else {}
        spans = dict[tuple[int, int], list[tuple[int, int]]]()
        for place in self.places:
            if place.home not in homes:
                continue
            start = place.start
            for block, where in pieces[place.home]:
                count = math.prod(b - a for a, b in where)
                spans.setdefault((block, place.buffer), []).append((start, count))
                start += count
        found = dict[int, list[Tensor]]()
        for (block, buffer), several in spans.items():
            for start, count in join_spans(several):
                piece = self._buffers[buffer].as_strided((count,), (1,), start)
                found.setdefault(block, []).append(piece)
        return found


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans, each a first entry and a count, with those joined that follow one another with
    a gap of less than the alignment.
    """
    found = list[tuple[int, int]]()
    for start, count in spans:
        first, before = found[-1] if found else (0, 0)
        if found and 0 <= start - first - before < ALIGNMENT:
            found[-1] = first, start + count - first
        else:
            found.append((start, count))
    return found


@lru_cache(maxsize=COMPILED)
def compile_rows(
    places: tuple[Place, ...], rows: tuple[Row, ...], layout: Layout, forms: Forms, block: int
) -> Program:
    """Return the additions that rows cause, for updates with this layout and these forms.

    places: of all sums
    block: largest number of entries in a block
    Raises ValueError if a part does not fit its home.
    """
    tensors = {name: (start, shape) for name, start, shape in layout}
    usual, own = forms[0], dict(forms[1])
    known = {place.home: (place.shape, place.extras) for place in places}
    homes = check_outlines(
        (outline_row(row, tensors[row.local][1], own.get(row.local, usual)) for row in rows), known
    )
    new = {home: found for home, found in homes.items() if home not in known}
    every = {place.home: place for place in (*places, *plan_places(new, places))}
    pieces = divide(tuple(every.values()), block)
    additions: dict[int, list[Addition]] = {}
    for index, row in enumerate(rows):
        start, shape = tensors[row.local]
        for number, where in pieces[row.home]:
            both = intersect(row.there, where)
            if both is None:
                continue
            one = make_addition(every[row.home], (index, row), both, start, shape)
            one = one if own.get(row.local, usual)[0] is not None else flatten(one)
            found = additions.setdefault(number, [])
            longer = join(found[-1], one) if found and not own else None
            found[-1:] = [longer] if longer else [*found[-1:], one]
    return Program(new, additions)


def outline_row(row: Row, shape: tuple[int, ...], form: Form) -> Outline:
    """Return the outline of a row's part. shape: of the local tensor."""
    inner = [min(b, n) - min(a, n) for (a, b), n in zip(row.here, shape, strict=False)]
    return Outline(row.home, row.there, row.shape, (*inner, *shape[len(inner) :]), *form)


def plan_places(
    new: Mapping[str, tuple[tuple[int, ...], int]], places: Sequence[Place]
) -> list[Place]:
    """Return the places of sums that `pack` will make."""
    buffer = 1 + max((place.buffer for place in places), default=-1)
    starts = itertools.accumulate((aligned_size(shape) for shape, _ in new.values()), initial=0)
    return [
        Place(home, shape, extras, buffer, start)
        for (home, (shape, extras)), start in zip(new.items(), starts, strict=False)
    ]


@lru_cache(maxsize=COMPILED)
def divide(places: tuple[Place, ...], most: int) -> Mapping[str, Sequence[tuple[int, Where]]]:
    """Cut the sums into pieces, and group them into blocks of at most `most` entries. Return index
    of the block and rectangle of each piece, by home.
    """
    found: dict[str, list[tuple[int, Where]]] = {}
    block = size = 0
    for place in places:
        for where in cut(corner(place.shape), most):
            count = math.prod(b - a for a, b in where)
            if size and size + count > most:
                block, size = block + 1, 0
            size += count
            found.setdefault(place.home, []).append((block, where))
    return found


def intersect(one: Where, other: Where) -> Where | None:
    """Return the intersection of two rectangles, if any; of scalars, which have no axis,
    themselves.
    """
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(a < b for a, b in both) else None


def make_addition(
    place: Place, numbered: tuple[int, Row], both: Where, start: int, shape: tuple[int, ...]
) -> Addition:
    """Return the addition of a row, with its index, in one rectangle of its home.

    start, shape: of the local tensor in the update's buffer
    """
    index, row = numbered
    stride, target = dense_strides(shape), dense_strides(place.shape)
    inner = [h + a - t for (h, _), (a, _), (t, _) in zip(row.here, both, row.there, strict=True)]
    span = slice(both[0][0] - row.there[0][0], both[0][1] - row.there[0][0]) if both else slice(0)
    return Addition(
        index,
        row.there == corner(row.shape),
        span,
        tuple(b - a for a, b in both),
        place.buffer,
        target,
        place.start + sum(a * step for (a, _), step in zip(both, target, strict=True)),
        stride,
        start + sum(map(math.prod, zip(inner, stride, strict=True))),
    )


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def flatten(addition: Addition) -> Addition:
    """Return the addition with one axis, if its values lie side by side in sum and update."""
    dense = dense_strides(addition.size)
    axes = [axis for axis, n in enumerate(addition.size) if n > 1]
    if any(addition.stride[a] != dense[a] or addition.target[a] != dense[a] for a in axes):
        return addition
    return replace(addition, size=(math.prod(addition.size),), target=(1,), stride=(1,))


def join(one: Addition, other: Addition) -> Addition | None:
    """Return two flat additions as one if the second follows the first in the sum and in the
    update, with an equal gap of padding at most; otherwise None. What lies in a gap is never read.
    """
    gap = ALIGNMENT if one.fills else 1
    moved = other.offset - one.offset
    if (
        (len(one.size), len(other.size)) != (1, 1)
        or one.buffer != other.buffer
        or other.start - one.start != moved
        or not 0 <= moved - one.size[0] < gap
    ):
        return None
    fills = one.fills and other.fills
    return replace(one, row=other.row, fills=fills, size=(moved + other.size[0],))
