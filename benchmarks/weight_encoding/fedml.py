"""Compress the weights of a ResNet-18 with FedML's functions, to compare their speed. They return
values and indices as tensors, and no bytes to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.peers.partial_imports import import_without
from benchmarks.weight_encoding.ours import NETWORK
from models.submodel_building import initial

__all__ = ["int8", "top_tenth"]


def int8(task: Mapping[str, Any]) -> Callable[[], object]:
    """QSGD with 2^8 - 1 levels and one scale per tensor; the values stay float32."""
    return _compress("QSGDCompressor", quantize_level=8, is_biased=False)


def top_tenth(task: Mapping[str, Any]) -> Callable[[], object]:
    """Top-k with error feedback."""
    return _compress("EFTopKCompressor", ratio=0.1)


def _compress(compressor: str, **options: Any) -> Callable[[], object]:
    # in this peer's environment alone
    make = getattr(import_without(("fedml",), "fedml.utils.compression"), compressor)
    weights = {name: value.flatten() for name, value in initial(NETWORK, 0).items()}

    def run() -> object:
        made = make()  # whose residual is 0
        return [made.compress(value, name, **options) for name, value in weights.items()]

    return run
