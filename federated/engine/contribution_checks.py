"""Check that the parts of an update have valid weights and fit the sums that they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from federated.engine.update_contributions import Part, Weight
from models.slicing import Where

__all__ = ["Outline", "UnfitPart", "check_outlines", "check_weight", "outline_part"]


class UnfitPart(ValueError):
    """A part that cannot be added up: a defect of the method's `parts`."""


class Outline(NamedTuple):
    """What decides whether a part fits its home.

    home: name of the home
    where: rectangle within it
    shape: shape of the whole home
    found: shape of the values
    rows: shape of the weight, if there is one for each row
    extras: number of further numbers
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    found: tuple[int, ...]
    rows: tuple[int, ...] | None
    extras: int


def outline_part(part: Part) -> Outline:
    rows = tuple(part.weight.shape) if isinstance(part.weight, Tensor) else None
    found = tuple(part.value.shape)
    return Outline(part.home, part.where, part.shape, found, rows, len(part.extra))


def check_weight(weight: Weight) -> None:
    """Raise UnfitPart for a weight that is negative or not finite. With weight 0, a part does not
    count.
    """
    if isinstance(weight, Tensor):
        wrong = weight[~(weight.isfinite() & (weight >= 0))]
        if not wrong.numel():
            return
        weight = float(wrong[0])
    if not (math.isfinite(weight) and weight >= 0):
        raise UnfitPart(f"expected weights of parts that are finite and at least 0, found {weight}")


def check_outlines(
    outlines: Iterable[Outline], known: Mapping[str, tuple[tuple[int, ...], int]]
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and number of extras of each home that the parts of an update name.

    known: the same of the homes that have a sum.
    Raises UnfitPart if a part does not fit its home.
    """
    homes: dict[str, tuple[tuple[int, ...], int]] = {}
    for one in outlines:
        if one.home not in homes:
            homes[one.home] = known.get(one.home, (one.shape, one.extras))
        shape, extras = homes[one.home]
        check_shape(one, shape)
        if one.extras != extras:
            raise UnfitPart(
                f"part of {one.home}: expected {extras} extras as in earlier parts, "
                f"found {one.extras}"
            )
    return homes


def check_shape(one: Outline, shape: tuple[int, ...]) -> None:
    """Raise UnfitPart if a part does not fit a home of this shape."""
    fits = len(one.where) == len(shape) and all(
        0 <= a < b <= n for (a, b), n in zip(one.where, shape, strict=True)
    )
    if one.shape != shape or not fits or one.found != tuple(b - a for a, b in one.where):
        raise UnfitPart(
            f"part of {one.home}: values of shape {one.found} at {one.where} of {one.shape} do not "
            f"fit a home of shape {shape}"
        )
    if one.rows is not None and one.rows != one.found[:1]:
        raise UnfitPart(
            f"part of {one.home}: expected one weight for each of {one.found[0]} rows, "
            f"found weights of shape {one.rows}"
        )
