"""Average updates with NVIDIA FLARE, on torch tensors, to compare its speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from benchmarks.aggregation.updates import map_updates
from coordinator.fleet.submodel_shipment import to_torch

__all__ = ["aggregation"]


def aggregation(task: Mapping[str, Any]) -> Callable[[], object]:
    # in this peer's environment alone
    name = "nvflare.app_common.aggregators.weighted_aggregation_helper"
    make = import_module(name).WeightedAggregationHelper

    updates = [to_torch(update) for update in map_updates(task["folder"])]

    def run() -> object:
        helper = make()
        for one in updates:
            helper.add(one.tensors, float(one.samples), one.agent, 1)
        return helper.get_result()

    return run
