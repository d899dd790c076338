"""Average updates with Apple's pfl-research, as sums of weighted statistics on torch tensors, to
compare its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any

from benchmarks.aggregation.updates import map_updates
from coordinator.fleet.submodel_shipment import to_torch

__all__ = ["aggregation"]


def aggregation(task: Mapping[str, Any]) -> Callable[[], object]:
    # in this peer's environment alone
    make = import_module("pfl.stats").MappedVectorStatistics
    selector = import_module("pfl.internal.ops.selector")
    selector.set_framework_module(import_module("pfl.internal.ops.pytorch_ops"))
    updates = [to_torch(update) for update in map_updates(task["folder"])]

    def run() -> object:
        weighted = (
            make({name: value * one.samples for name, value in one.tensors.items()}, one.samples)
            for one in updates
        )
        total = reduce(add, weighted)
        total.average()
        return total

    return run
