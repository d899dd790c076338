"""Add updates that lie in flat buffers block by block, so that several updates read and write each
sum in memory once.

The rows of a plan are compiled once into additions: pieces of an update's buffer, each with the
piece of a sum that it is added to. Neighbouring tensors become one addition. A block is a group of
pieces of the sums that fits the processor's cache. Every entry is added in the order of the
updates, so the bits do not depend on how many updates are added together, on the blocks, or on the
number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from federated.engine.update_contributions import Weight
from models.slicing import Row, Where, as_slices, corner
from models.slicing import blocks as cut

__all__ = ["Additions", "Blocks", "Layout", "find_layout", "intersect", "pack"]

BLOCK = 1 << 19  # entries of the sums in one block
ALIGNMENT = 16  # entries, as in an encoded update

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
    start, places = base.data_ptr(), list[tuple[str, int, tuple[int, ...]]]()
    for name, value in tensors.items():
        if (
            getattr(value, "_base", None) is not base
            or value.dtype != torch.float32
            or not value.is_contiguous()
        ):
            return None
        places.append((name, (value.data_ptr() - start) // value.itemsize, tuple(value.shape)))
    return flat, tuple(places)


def pack(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return zeros for each name, side by side in one buffer, aligned as in an encoded update.

    numpy asks the system for large pages, which it hands out several times faster.
    """
    counts = [-(-math.prod(shape) // ALIGNMENT) * ALIGNMENT for shape in shapes.values()]
    flat = torch.from_numpy(np.zeros(sum(counts), np.float32))
    starts = itertools.accumulate(counts, initial=0)
    return {
        name: flat[start : start + math.prod(shape)].view(shape)
        for (name, shape), start in zip(shapes.items(), starts, strict=False)
    }


@dataclass(frozen=True)
class Addition:
    """One addition.

    target: piece of a sum
    row: index of the plan's row, whose factor counts
    span: rows of the rectangle (axis 0) that it covers, where each has a factor of its own
    size, stride, offset: the values in the update's buffer, in entries
    """

    target: Tensor
    row: int
    span: slice
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def add(self, flat: Tensor, factor: Weight) -> None:
        """Add the values of an update's buffer."""
        values = torch.as_strided(flat, self.size, self.stride, self.offset)
        if isinstance(factor, Tensor):
            rows = factor[self.span].to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
            self.target.addcmul_(values, rows)
        else:
            self.target.add_(values, alpha=factor)


Additions = Mapping[int, Sequence[Addition]]
"""The additions of an update, by index of the block."""


class Blocks:
    """The sums of a total, cut into blocks."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # entries of each block
        self._pieces: dict[str, list[tuple[int, Where]]] = {}  # index of the block, and rectangle
        self._values: dict[str, Tensor] = {}

    def include(self, home: str, value: Tensor) -> None:
        """Cut the sum of a home into blocks, unless that was done before."""
        if home in self._values:
            return
        self._values[home], pieces = value, self._pieces.setdefault(home, [])
        for where in cut(corner(value.shape), BLOCK):
            count = math.prod(b - a for a, b in where)
            if not self._sizes or self._sizes[-1] + count > BLOCK:
                self._sizes.append(0)
            self._sizes[-1] += count
            pieces.append((len(self._sizes) - 1, where))

    def compile(
        self, rows: Mapping[int, Row], layout: Layout, *, joined: bool, by_row: Collection[str]
    ) -> Additions:
        """Return the additions that a plan's rows cause, for updates with this layout.

        rows: by index in the plan
        joined: True if all rows have the same factor, so that adjacent ones become one addition
        by_row: names of local tensors of which each row has its own factor
        """
        found: dict[int, list[Addition]] = {}
        places = {name: (start, shape) for name, start, shape in layout}
        for index, row in rows.items():
            start, shape = places[row.local]
            for block, where in self._pieces[row.home]:
                both = intersect(row.there, where)
                if both is None:
                    continue
                addition = make_addition(self._values[row.home], (index, row), both, start, shape)
                addition = addition if row.local in by_row else flatten(addition)
                additions = found.setdefault(block, [])
                longer = (
                    join(additions[-1], addition, rows[additions[-1].row])
                    if joined and additions
                    else None
                )
                additions[-1:] = [longer] if longer else [*additions[-1:], addition]
        return found

    def add(self, updates: Sequence[tuple[Additions, Tensor, Sequence[Weight]]]) -> None:
        """Add updates to the sums: of each, its additions, buffer and factor of each row."""
        for index in range(len(self._sizes)):
            for additions, flat, factors in updates:
                for addition in additions.get(index, ()):
                    addition.add(flat, factors[addition.row])


def intersect(one: Where, other: Where) -> Where | None:
    """Return the intersection of two rectangles, if any; of scalars, which have no axis,
    themselves.
    """
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(a < b for a, b in both) else None


def make_addition(
    value: Tensor, place: tuple[int, Row], both: Where, start: int, shape: tuple[int, ...]
) -> Addition:
    """Return the addition of a row and its index in one rectangle of its home.

    value: sum of the home
    start, shape: of the local tensor in the update's buffer
    """
    index, row = place
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    inner = [h + a - t for (h, _), (a, _), (t, _) in zip(row.here, both, row.there, strict=True)]
    offset = start + sum(map(math.prod, zip(inner, stride, strict=True)))
    span = slice(both[0][0] - row.there[0][0], both[0][1] - row.there[0][0]) if both else slice(0)
    size = tuple(b - a for a, b in both)
    return Addition(value[as_slices(both)], index, span, size, stride, offset)


def flatten(addition: Addition) -> Addition:
    """Return the addition with one axis, if its values lie side by side in sum and update."""
    dense = [math.prod(addition.size[axis + 1 :]) for axis in range(len(addition.size))]
    axes = [axis for axis, n in enumerate(addition.size) if n > 1]
    if any(addition.stride[a] != dense[a] or addition.target.stride(a) != dense[a] for a in axes):
        return addition
    size = (math.prod(addition.size),)
    target = torch.as_strided(addition.target, size, (1,), addition.target.storage_offset())
    return replace(addition, target=target, size=size, stride=(1,))


def join(one: Addition, other: Addition, row: Row) -> Addition | None:
    """Return two flat additions as one if the second follows the first in the sum and in the
    update, with an equal gap of less than the alignment; otherwise None. What lies in a gap is
    never read.

    row: of the first addition; unless it fills its home, what follows is not a gap
    """
    gap = ALIGNMENT if row.there == corner(row.shape) else 1
    a, b, moved = one.target, other.target, other.offset - one.offset
    if (
        (len(one.size), len(other.size)) != (1, 1)
        or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
        or b.storage_offset() - a.storage_offset() != moved
        or not 0 <= moved - one.size[0] < gap
    ):
        return None
    size = (moved + other.size[0],)
    return replace(
        one, row=other.row, target=torch.as_strided(a, size, (1,), a.storage_offset()), size=size
    )
