"""Import torchvision on demand, for networks and data sets; no other file imports it."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

__all__ = ["import_torchvision"]

MISSING = "operator torchvision::nms does not exist"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# a torch.library.Library removes its schemas when it is garbage-collected
_declared: list[Any] = []


def import_torchvision(part: str) -> ModuleType:
    """Import and return `torchvision.<part>`, such as `datasets` or `models`.

    ModuleNotFoundError: torchvision or torch is not installed.
    """
    try:
        return _import(part)
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
        return _import_without_operators(part)


def _import(part: str) -> ModuleType:
    with warnings.catch_warnings():
        # the extension decodes image files, which Pillow does here
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        return importlib.import_module(f"torchvision.{part}")


def _import_without_operators(part: str) -> ModuleType:
    """Import torchvision without its compiled extension, for which no build fits this torch:
    declare the two missing schemas, then import again.

    The schemas are declared only after that exact error: declaring them beside a complete
    torchvision would abort the process.
    """
    import torch

    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return _import(part)
