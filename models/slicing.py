"""Where each tensor of a submodel lives in the largest network: the only cutting code of the
project.

A plan is a list of rows, rectangle to rectangle, and one plan serves to extract, to embed and to
fold. Homes are the keys of the flat dict of tensors that a coordinator keeps. A home `name@group`
belongs to some devices only; until it is written, it reads `name`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.families.catalogue import address, shapes, statistics
from models.submodel import Submodel

__all__ = [
    "Plan",
    "Row",
    "Where",
    "at",
    "corner",
    "corners",
    "embed",
    "extract",
    "graft",
    "is_statistic",
    "present",
]

Where = tuple[tuple[int, int], ...]
"""A rectangle: (start, stop) per axis."""


@dataclass(frozen=True)
class Row:
    """local[here] lives in home[there]; `shape` is that of the whole home."""

    local: str
    here: Where
    home: str
    there: Where
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    submodel: Submodel
    rows: tuple[Row, ...]


def corner(shape: Sequence[int]) -> Where:
    """The rectangle of this shape that starts at the origin."""
    return tuple((0, n) for n in shape)


def at(where: Where) -> tuple[slice, ...]:
    """A rectangle as an index."""
    return tuple(slice(start, stop) for start, stop in where)


def corners(
    whole: Mapping[str, tuple[int, ...]],
    submodel: Submodel,
    local: Mapping[str, tuple[int, ...]] | None = None,
) -> Plan:
    """The plan in which every tensor of a submodel is the leading corner of the home of its name.

    whole: shape of every home. local: shapes of the submodel's tensors, its parameters unless
    given.
    ValueError: a tensor has no home, or does not fit into it.
    """
    return Plan(
        submodel,
        tuple(
            row(name, shape, whole)
            for name, shape in (shapes(submodel) if local is None else local).items()
        ),
    )


def row(name: str, shape: tuple[int, ...], whole: Mapping[str, tuple[int, ...]]) -> Row:
    home = whole.get(name)
    if (
        home is None
        or len(home) != len(shape)
        or any(n > m for n, m in zip(shape, home, strict=True))
    ):
        raise ValueError(
            f"tensor {name} of shape {shape} is no corner of the global one, of shape {home}"
        )
    return Row(name, corner(shape), name, corner(shape), tuple(home))


def graft(plan: Plan, whole: Mapping[str, tuple[int, ...]]) -> Plan:
    """Adds rows by which the last kept block of each section stands in for the deeper ones that a
    submodel lacks (FedFA, Algorithm 2).

    A tensor stands in only where it has the shape that the submodel's own would have there, so a
    first block (other channels, a projection) gives what fits and no more. Grafted rows are for
    folding: their homes are not the submodel's to receive.
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
    """The submodel's tensors, contiguous, by local name; they may share memory with `tensors`."""
    found: dict[str, list[Row]] = {}
    for r in plan.rows:
        found.setdefault(r.local, []).append(r)
    return {local: gather(tensors, rows) for local, rows in found.items()}


def gather(tensors: Mapping[str, Tensor], rows: list[Row]) -> Tensor:
    """One local tensor from the rectangles that it is made of."""
    if len(rows) == 1:
        return read(tensors, rows[0]).contiguous()
    shape = [max(r.here[axis][1] for r in rows) for axis in range(len(rows[0].here))]
    out = torch.empty(shape, dtype=read(tensors, rows[0]).dtype)
    for r in rows:
        out[at(r.here)] = read(tensors, r)
    return out


def read(tensors: Mapping[str, Tensor], row: Row) -> Tensor:
    source = tensors.get(row.home)
    return (tensors[row.home.partition("@")[0]] if source is None else source)[at(row.there)]


def present(tensors: Mapping[str, Tensor], home: str, shape: Sequence[int]) -> Tensor:
    """A home's tensor, of this shape; of a group's home that is not yet written, the corner of what
    it reads.
    """
    source = tensors.get(home)
    return tensors[home.partition("@")[0]][at(corner(shape))] if source is None else source


def is_statistic(home: str) -> bool:
    """Whether a home, of all or of a group, holds running statistics of batch norm."""
    return home.partition("@")[0].endswith(("running_mean", "running_var"))


def embed(
    tensors: Mapping[str, Tensor], plan: Plan, local: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """`tensors` with the submodel's written where they live: the inverse of `extract`. Leaves what
    it was given as it is.
    """
    out = dict(tensors)
    fresh: set[str] = set()
    for r in plan.rows:
        if r.local not in local:
            continue
        if r.home not in fresh:
            old = out.get(r.home)
            out[r.home] = (
                torch.zeros(r.shape, dtype=local[r.local].dtype) if old is None else old.clone()
            )
            fresh.add(r.home)
        out[r.home][at(r.there)] = local[r.local][at(r.here)]
    return out
