"""What one update adds to the coordinator's sums: rectangles (`Part`) of the coordinator's tensors
(homes), each with its values and their weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from models.slicing import Row, Where, as_slices

__all__ = ["Form", "Forms", "Part", "RowParts", "Terms", "Weight"]

Weight = float | Tensor
"""One number, or a float64 vector over axis 0 of a rectangle."""

Form = tuple[tuple[int, ...] | None, int]
"""Shape of a vector of weights (None for one number), and number of extras."""

Forms = tuple[Form, tuple[tuple[str, Form], ...]]
"""Form of the terms of all rows, and of those of rows that have their own, by local name."""


@dataclass(frozen=True)
class Part:
    """One rectangle of one home in one update. It adds weight x scale x value to the sum, and
    weight to the divisor.

    home: name of the home
    where: rectangle within it
    shape: shape of the whole home
    value: tensor of the rectangle's shape
    weight: one number, or a vector over axis 0 of the rectangle; finite and at least 0 (does not
        count)
    scale: factor of the value alone
    extra: further numbers, summed per rectangle beside the weight
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    value: Tensor
    weight: Weight = 1.0
    scale: float = 1.0
    extra: tuple[float, ...] = ()


@dataclass(frozen=True)
class Terms:
    """Weight, scale and extras of a row's values, as in `Part`."""

    weight: Weight
    scale: float = 1.0
    extra: tuple[float, ...] = ()

    @property
    def columns(self) -> list[Weight]:
        """The weight and the extras, as they are summed per rectangle."""
        weight = self.weight
        number: Weight = weight.double() if isinstance(weight, Tensor) else float(weight)
        return [number, *map(float, self.extra)]

    @property
    def factor(self) -> Weight:
        """The factor of the values: weight times scale."""
        weight = self.weight
        return (weight.double() if isinstance(weight, Tensor) else weight) * self.scale

    @property
    def form(self) -> Form:
        weight = self.weight
        return tuple(weight.shape) if isinstance(weight, Tensor) else None, len(self.extra)


@dataclass(frozen=True)
class RowParts:
    """The parts of an update that contributes its own values, one per row of a plan whose tensor it
    holds. `fold` adds them without making the parts.

    rows: of the plan; the same object for all updates of a submodel
    tensors: of the update, by local name
    terms: of all rows
    own: terms of rows that have their own, by local name
    """

    rows: tuple[Row, ...]
    tensors: Mapping[str, Tensor]
    terms: Terms
    own: Mapping[str, Terms] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Part]:
        return (self.part(row) for row in self.rows if row.local in self.tensors)

    @cached_property
    def forms(self) -> Forms:
        """Forms of all terms: updates with the same rows, tensors and forms fit the same sums."""
        return self.terms.form, tuple((name, terms.form) for name, terms in self.own.items())

    def part(self, row: Row) -> Part:
        """Return the part of a row."""
        value = torch.as_tensor(self.tensors[row.local])[as_slices(row.here)]
        terms = self.own.get(row.local, self.terms)
        return Part(row.home, row.there, row.shape, value, terms.weight, terms.scale, terms.extra)
