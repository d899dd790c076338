"""Stored updates for a robust rule, on nested corners of one small tensor."""

from __future__ import annotations

import torch

from federated.engine.aggregate import mean
from federated.engine.robust.catalogue import RULES
from federated.engine.robust.rule import combine
from federated.engine.update_contributions import Part
from federated.engine.update_part_files import PartStore

__all__ = ["OLD", "corner", "part", "result", "store_parts", "whole"]

OLD = {"w": torch.zeros(2, 2)}


def part(value, where=None, shape=None, weight=1.0, home="w"):
    value = torch.as_tensor(value, dtype=torch.float32)
    return Part(
        home,
        tuple((0, n) for n in value.shape) if where is None else where,
        tuple(value.shape) if shape is None else shape,
        value,
        weight,
    )


def store_parts(folder, *updates):
    kept = PartStore(folder)
    for index, parts in enumerate(updates):
        kept.fold(parts if isinstance(parts, list) else [parts], (f"a{index}", 1))
    return kept


def result(kept, tensors, rule, f, home="w"):
    total = combine(RULES[rule], kept, tensors, f)
    return mean(total.sums[home], tensors[home])


def corner(value):
    return part([[value]], shape=(2, 2))


def whole(*values):
    return part([[values[0], values[1]], [values[2], values[3]]])
