"""Compress the weights of a ResNet-18 with FedML's functions, to compare their speed. They return
values and indices as tensors, and no bytes to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.weight_encoding.ours import NETWORK
from models.submodel_building import initial

__all__ = ["int8", "top_tenth"]


def load_compression() -> ModuleType:
    """Return `fedml.utils.compression`. Importing the package would load its services too."""
    package = find_spec("fedml")  # in this peer's environment alone
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "utils" / "compression.py"
    spec = spec_from_file_location("fedml_compression", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def int8(task: Mapping[str, Any]) -> Callable[[], object]:
    """QSGD with 2^8 - 1 levels and one scale per tensor; the values stay float32."""
    return _compress(load_compression().QSGDCompressor, quantize_level=8, is_biased=False)


def top_tenth(task: Mapping[str, Any]) -> Callable[[], object]:
    """Top-k with error feedback."""
    return _compress(load_compression().EFTopKCompressor, ratio=0.1)


def _compress(make: Callable[[], Any], **options: Any) -> Callable[[], object]:
    weights = {name: value.flatten() for name, value in initial(NETWORK, 0).items()}

    def run() -> object:
        compressor = make()  # whose residual is 0
        return [compressor.compress(value, name, **options) for name, value in weights.items()]

    return run
