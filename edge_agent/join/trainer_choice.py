"""Choose the trainer for `--trainer auto` by a comparison of ONNX Runtime with PyTorch on this
device, and keep the comparison in the cache of measurements. Does not import torch.

`edge-agent profile --compare-trainers` compares, because that takes the export of a graph. A join
only reads the result, so it takes no longer, and the load of the moment does not decide.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_agent.device.measurement_cache import MeasurementCache
from federated.device.trainers.catalogue import AUTO
from federated.device.trainers.trainer import Trainer, uses_graphs

__all__ = ["GAIN", "choose_trainer", "compares", "find_ratio"]

GAIN = 0.9  # graphs must be faster than this: a device waits for their export, too


def compares(trainer: Trainer) -> bool:
    """Return True if a trainer is an alternative to graphs: on the processor, with PyTorch."""
    return not uses_graphs(trainer) and trainer.accelerator is None


def find_ratio(
    family: str, cache: MeasurementCache, measure: Callable[[], float] | None = None
) -> float:
    """Return the time of a training step with graphs, divided by PyTorch's, for networks of a
    family; 0 if it is not in the cache and `measure` is None. That of a user's own network is never
    cached, since its code may have changed.
    """

    def take() -> float:
        if measure is None:
            raise LookupError
        return measure()

    try:
        what = {"work": "compare trainers", "family": family}
        return cache.value(what, take, keep=":" not in family)
    except LookupError:
        return 0.0


def choose_trainer(family: str, cache: MeasurementCache, trainer: Trainer) -> str:
    """Return `onnx` if it was measured to train a family faster than the trainer that `auto`
    opened, or else `auto`.
    """
    return "onnx" if compares(trainer) and 0 < find_ratio(family, cache) < GAIN else AUTO
