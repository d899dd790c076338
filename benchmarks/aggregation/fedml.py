"""Average updates with FedML's function for FedAvg, on torch tensors, to compare its speed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.aggregation.updates import map_updates
from benchmarks.peers.partial_imports import import_without

__all__ = ["aggregation"]


def aggregation(task: Mapping[str, Any]) -> Callable[[], object]:
    # in this peer's environment alone
    name = "fedml.ml.aggregator.agg_operator"
    aggregate = import_without(("fedml", "fedml.core"), name).FedMLAggOperator.agg
    settings = SimpleNamespace(federated_optimizer="FedAvg")
    # the arrays are read-only, and no code writes
    warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
    updates = [
        (one.samples, {name: torch.from_numpy(value) for name, value in one.tensors.items()})
        for one in map_updates(task["folder"])
    ]

    def run() -> object:
        # it puts the means into the first of these mappings
        return aggregate(settings, [(samples, dict(values)) for samples, values in updates])

    return run
