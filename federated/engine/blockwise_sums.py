"""Add updates that lie in flat buffers block by block, so that several updates read and write each
sum in memory once.

The rows of a plan are compiled once into runs: pieces of an update's buffer, each with the piece of
a sum that it is added to. Neighbouring tensors become one run. A block is a group of pieces of the
sums that fits the processor's cache. Every entry is added in the order of the updates, so the bits
do not depend on how many updates are at hand, on the blocks, or on the number of threads.
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

__all__ = ["Blocks", "Layout", "Runs", "find_layout", "intersect", "pack"]

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
class Run:
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


Runs = Mapping[int, Sequence[Run]]
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
    ) -> Runs:
        """Return the additions that a plan's rows cause, for updates with this layout.

        rows: by index in the plan
        joined: True if all rows have the same factor, so that adjacent ones can be added as one run
        by_row: names of local tensors of which each row has its own factor
        """
        found: dict[int, list[Run]] = {}
        places = {name: (start, shape) for name, start, shape in layout}
        for index, row in rows.items():
            start, shape = places[row.local]
            for block, where in self._pieces[row.home]:
                both = intersect(row.there, where)
                if both is None:
                    continue
                run = make_run(self._values[row.home], (index, row), both, start, shape)
                run = run if row.local in by_row else flatten(run)
                runs = found.setdefault(block, [])
                longer = join(runs[-1], run, rows[runs[-1].row]) if joined and runs else None
                runs[-1:] = [longer] if longer else [*runs[-1:], run]
        return found

    def add(self, updates: Sequence[tuple[Runs, Tensor, Sequence[Weight]]]) -> None:
        """Add updates to the sums: the runs of each, its buffer, and the factor of each row."""
        for index in range(len(self._sizes)):
            for runs, flat, factors in updates:
                for run in runs.get(index, ()):
                    run.add(flat, factors[run.row])


def intersect(one: Where, other: Where) -> Where | None:
    """Return the intersection of two rectangles, if any; of scalars, which have no axis,
    themselves.
    """
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(a < b for a, b in both) else None


def make_run(
    value: Tensor, place: tuple[int, Row], both: Where, start: int, shape: tuple[int, ...]
) -> Run:
    """Return the run of a row and its index in one rectangle of its home.

    value: sum of the home
    start, shape: of the local tensor in the update's buffer
    """
    index, row = place
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    inner = [h + a - t for (h, _), (a, _), (t, _) in zip(row.here, both, row.there, strict=True)]
    offset = start + sum(map(math.prod, zip(inner, stride, strict=True)))
    span = slice(both[0][0] - row.there[0][0], both[0][1] - row.there[0][0]) if both else slice(0)
    size = tuple(b - a for a, b in both)
    return Run(value[as_slices(both)], index, span, size, stride, offset)


def flatten(run: Run) -> Run:
    """Return the run with one axis, if its values lie side by side in the sum and in the update."""
    dense = [math.prod(run.size[axis + 1 :]) for axis in range(len(run.size))]
    axes = [axis for axis, n in enumerate(run.size) if n > 1]
    if any(run.stride[a] != dense[a] or run.target.stride(a) != dense[a] for a in axes):
        return run
    size = (math.prod(run.size),)
    target = torch.as_strided(run.target, size, (1,), run.target.storage_offset())
    return replace(run, target=target, size=size, stride=(1,))


def join(one: Run, other: Run, row: Row) -> Run | None:
    """Return two flat runs as one if the second follows the first in the sum and in the update,
    with an equal gap of less than the alignment; otherwise None. What lies in a gap is never read.

    row: of the first run; unless it fills its home, what follows is no gap
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
