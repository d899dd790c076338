"""How far updates moved what they were given, and how that is bounded: norms of whole changes, over
all that an update contributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from federated.engine.aggregate import Part, Sum
from federated.method import State, Tensors
from models.slicing import as_slices, present

__all__ = ["change", "clipped", "counted", "grounded", "length", "moved"]

# entries whose squares are added up at a time, so that no copy of a large tensor is made
BLOCK = 1 << 20


def counted(part: Part) -> Part:
    """The part with weight 1, in the rows that it gives at all: what a device says of its examples
    is a claim, and a liar's would be the largest.
    """
    weight = part.weight
    return replace(
        part, weight=(weight > 0).double() if isinstance(weight, Tensor) else float(weight > 0)
    )


def moved(part: Part, tensors: Tensors) -> Tensor:
    """New minus old of a part's rectangle; 0 in rows that it gives no weight."""
    old = present(tensors, part.home, part.shape)[as_slices(part.where)]
    step = part.value - old
    if isinstance(part.weight, Tensor):
        step = step * (part.weight > 0).to(step.dtype).reshape(-1, *[1] * (step.dim() - 1))
    return step


def change(values: Tensor) -> float:
    """Sum of squares, in float64."""
    return math.fsum(
        float(block.double().square().sum()) for block in torch.split(values.reshape(-1), BLOCK)
    )


def length(parts: Iterable[Part], tensors: Tensors) -> float:
    """L2 norm of all that an update's parts moved, together. tensors: the state's, by home."""
    return math.sqrt(math.fsum(change(moved(part, tensors)) for part in parts))


def clipped(parts: Iterable[Part], tensors: Tensors, bound: float) -> list[Part]:
    """The parts of one update, the whole of what they moved shortened to L2 norm `bound` where it
    is longer; the direction stays.
    """
    found = list(parts)
    norm = length(found, tensors)
    if norm <= bound:
        return found
    return [
        replace(
            part,
            value=torch.lerp(
                present(tensors, part.home, part.shape)[as_slices(part.where)].to(part.value),
                part.value,
                bound / norm,
            ),
        )
        for part in found
    ]


def grounded(state: State, sums: Mapping[str, Sum]) -> State:
    """The state with every home of some sums written: the mean of a group's home that was not goes
    by its dtype, and keeps what it read.
    """
    new = {
        home: present(state.tensors, home, one.value.shape)
        for home, one in sums.items()
        if home not in state.tensors
    }
    return replace(state, tensors={**state.tensors, **new})
