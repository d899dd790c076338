"""Compute and clip the norm of an update's whole change, over everything that it contributes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from federated.engine.aggregate import Sum
from federated.engine.contribution_checks import check_weight
from federated.engine.update_contributions import Part
from federated.method import State, Tensors
from models.slicing import as_slices, read_home

__all__ = ["add_missing_homes", "change_norm", "clip_parts", "count_once", "subtract_old"]

BLOCK = 1 << 20  # entries squared at a time, so that no copy of a large tensor is made


def count_once(part: Part) -> Part:
    """Return the part with weight 1 in all rows that it covers. A device's number of examples is a
    claim, and a liar would claim the most. Raises UnfitPart for an invalid weight.
    """
    weight = part.weight
    check_weight(weight)
    return replace(
        part, weight=(weight > 0).double() if isinstance(weight, Tensor) else float(weight > 0)
    )


def subtract_old(part: Part, tensors: Tensors) -> Tensor:
    """Return new minus old values of a part's rectangle; 0 in rows of weight 0."""
    old = read_home(tensors, part.home, part.shape)[as_slices(part.where)]
    step = part.value - old
    if isinstance(part.weight, Tensor):
        step = step * (part.weight > 0).to(step.dtype).reshape(-1, *[1] * (step.dim() - 1))
    return step


def sum_squares(values: Tensor) -> float:
    """Return the sum of squares, in float64."""
    return math.fsum(
        float(block.double().square().sum()) for block in torch.split(values.reshape(-1), BLOCK)
    )


def change_norm(parts: Iterable[Part], tensors: Tensors) -> float:
    """Return the L2 norm of the change of all parts together. tensors: the state's, by home."""
    return math.sqrt(math.fsum(sum_squares(subtract_old(part, tensors)) for part in parts))


def clip_parts(parts: Iterable[Part], tensors: Tensors, bound: float) -> list[Part]:
    """Return the parts of one update, with the change of all parts together shortened to L2 norm
    `bound` if it is longer. Its direction does not change.
    """
    found = list(parts)
    norm = change_norm(found, tensors)
    if norm <= bound:
        return found
    return [
        replace(
            part,
            value=torch.lerp(
                read_home(tensors, part.home, part.shape)[as_slices(part.where)].to(part.value),
                part.value,
                bound / norm,
            ),
        )
        for part in found
    ]


def add_missing_homes(state: State, sums: Mapping[str, Sum]) -> State:
    """Return the state with a tensor for every home of some sums. The first mean of a group's home
    needs the dtype and the old values that the group has read so far.
    """
    new = {
        home: read_home(state.tensors, home, one.value.shape)
        for home, one in sums.items()
        if home not in state.tensors
    }
    return replace(state, tensors={**state.tensors, **new})
