"""Average updates with Flower's FedAvg, on lists of arrays, to compare its speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from benchmarks.aggregation.updates import map_updates

__all__ = ["aggregation"]


def aggregation(task: Mapping[str, Any]) -> Callable[[], object]:
    # in this peer's environment alone
    aggregate = import_module("flwr.server.strategy.aggregate").aggregate

    results = [
        (list(update.tensors.values()), update.samples) for update in map_updates(task["folder"])
    ]
    return lambda: aggregate(results)
