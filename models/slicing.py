"""Map each tensor of a submodel to its place in the largest network, to cut submodels out and to
put their updates back.

A plan is a list of rows, each of which maps a box (start and stop per axis) of a submodel's tensor
to a box of the largest network's. A home is a key of the coordinator's flat dict of tensors. A home
`name@group` belongs to some devices only; until one of them has written it, `name` is read instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.submodel import Submodel
from models.submodel_building import address, pieces, shapes, statistics

__all__ = [
    "Plan",
    "Row",
    "Where",
    "as_slices",
    "blocks",
    "corner",
    "corners",
    "extract",
    "graft",
    "is_statistic",
    "is_variance",
    "read_home",
]

Where = tuple[tuple[int, int], ...]
"""A rectangle: (start, stop) per axis."""


@dataclass(frozen=True)
class Row:
    """local[here] corresponds to home[there].

    local: name of the submodel's tensor
    here: rectangle within it
    home: name of the global tensor
    there: rectangle within it
    shape: shape of the whole home
    partial: whether other rows hold the rest of the local tensor
    """

    local: str
    here: Where
    home: str
    there: Where
    shape: tuple[int, ...]
    partial: bool = False


@dataclass(frozen=True)
class Plan:
    """The rows of a submodel."""

    submodel: Submodel
    rows: tuple[Row, ...]


def corner(shape: Sequence[int]) -> Where:
    """Return the rectangle of this shape that starts at the origin."""
    return tuple((0, n) for n in shape)


def as_slices(where: Where) -> tuple[slice, ...]:
    """Return a rectangle as an index."""
    return tuple(slice(start, stop) for start, stop in where)


def corners(
    whole: Mapping[str, tuple[int, ...]],
    submodel: Submodel,
    local: Mapping[str, tuple[int, ...]] | None = None,
) -> Plan:
    """Return the plan in which every tensor of a submodel is the leading corner of the home of the
    same name, or consists of the pieces that its family names.

    whole: shape of every home
    local: shapes of the submodel's tensors; its parameters by default
    ValueError: a tensor has no home, or does not fit into it.
    """
    split = pieces(submodel)
    return Plan(
        submodel,
        tuple(
            piece
            for name, shape in (shapes(submodel) if local is None else local).items()
            for piece in cut_row(row(name, shape, whole), split.get(name, ()))
        ),
    )


def cut_row(row: Row, kept: tuple[Where, ...]) -> Iterator[Row]:
    """Yield a row of corners as rows of pieces. kept: (start, stop) of each piece, per axis."""
    if not kept:
        yield row
        return
    axes = []
    for runs in kept:
        ends = list(itertools.accumulate(stop - start for start, stop in runs))
        axes.append([((b - (run[1] - run[0]), b), run) for b, run in zip(ends, runs, strict=True)])
    for several in itertools.product(*axes):
        here, there = zip(*several, strict=True)
        yield replace(row, here=here, there=there, partial=True)


def row(name: str, shape: tuple[int, ...], whole: Mapping[str, tuple[int, ...]]) -> Row:
    home = whole.get(name)
    if (
        home is None
        or len(home) != len(shape)
        or any(n > m for n, m in zip(shape, home, strict=True))
    ):
        raise ValueError(
            f"tensor {name} of shape {shape} does not fit into the global tensor of shape {home}"
        )
    return Row(name, corner(shape), name, corner(shape), tuple(home))


def graft(plan: Plan, whole: Mapping[str, tuple[int, ...]]) -> Plan:
    """Add rows that let the last kept block of each section stand in for the deeper blocks that a
    submodel lacks (FedFA, Algorithm 2).

    A tensor stands in only where it has the shape that the submodel's own tensor would have, so a
    first block (other channels, a projection) contributes only the tensors that fit. Grafted rows
    are for folding only: the submodel does not receive their homes.
    """
    network, mask = plan.submodel.network, plan.submodel.mask
    own = {address(network, r.local): r for r in plan.rows}
    last = [max((b for b, keep in enumerate(section) if keep), default=-1) for section in mask]
    deeper = replace(
        plan.submodel,
        mask=tuple(
            tuple(int(keep or b > top) for b, keep in enumerate(m))
            for m, top in zip(mask, last, strict=True)
        ),
    )
    rows = []
    for name, shape in (shapes(deeper) | statistics(deeper)).items():
        place = address(network, name)
        if place is None or place[1] <= last[place[0]] or name not in whole:
            continue
        source = own.get((place[0], last[place[0]], place[2]))
        if source is not None and source.there == corner(shape):
            rows.append(replace(source, home=name, shape=tuple(whole[name])))
    return replace(plan, rows=plan.rows + tuple(rows))


def extract(tensors: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
    """Return the submodel's tensors by local name, contiguous; they may share memory with
    `tensors`.
    """
    found: dict[str, list[Row]] = {}
    for r in plan.rows:
        found.setdefault(r.local, []).append(r)
    return {local: gather(tensors, rows) for local, rows in found.items()}


def gather(tensors: Mapping[str, Tensor], rows: list[Row]) -> Tensor:
    """Assemble one local tensor from its rectangles."""
    if len(rows) == 1:
        return read(tensors, rows[0]).contiguous()
    shape = [max(r.here[axis][1] for r in rows) for axis in range(len(rows[0].here))]
    out = torch.empty(shape, dtype=read(tensors, rows[0]).dtype)
    for r in rows:
        out[as_slices(r.here)] = read(tensors, r)
    return out


def read(tensors: Mapping[str, Tensor], row: Row) -> Tensor:
    source = tensors.get(row.home)
    return (tensors[row.home.partition("@")[0]] if source is None else source)[as_slices(row.there)]


def read_home(tensors: Mapping[str, Tensor], home: str, shape: Sequence[int]) -> Tensor:
    """Return a home's tensor of this shape; for a group's home that is not yet written, the corner
    of its fallback.
    """
    source = tensors.get(home)
    return tensors[home.partition("@")[0]][as_slices(corner(shape))] if source is None else source


def is_statistic(home: str) -> bool:
    """Return True if a home, global or of a group, holds running statistics of batch norm."""
    return home.partition("@")[0].endswith(("running_mean", "running_var"))


def is_variance(home: str) -> bool:
    """Return True if a home, global or of a group, holds running variances of batch norm."""
    return home.partition("@")[0].endswith("running_var")


def blocks(where: Where, most: int) -> Iterator[Where]:
    """Yield a rectangle cut along its first axes into blocks of at most `most` entries, each
    contiguous in memory.
    """
    extent = [b - a for a, b in where]
    if math.prod(extent) <= most:
        yield where
        return
    axis = next(i for i, n in enumerate(extent) if n > 1)
    inner = math.prod(extent[axis + 1 :])
    a, b = where[axis]
    step = max(1, most // inner)
    for start in range(a, b, step):
        piece = (*where[:axis], (start, min(b, start + step)), *where[axis + 1 :])
        yield from blocks(piece, most)
