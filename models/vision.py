"""torchvision, imported only when called: the one place that does, for networks and for data sets
alike.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

__all__ = ["torchvision"]

MISSING = "operator torchvision::nms does not exist"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch.library.Library takes its schemas back when it is collected


def torchvision(part: str) -> ModuleType:
    """The module `torchvision.<part>`, such as `datasets` or `models`. Raises ModuleNotFoundError
    where torchvision or torch is not installed.
    """
    try:
        return _import(part)
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
        return _repaired(part)


def _import(part: str) -> ModuleType:
    with warnings.catch_warnings():
        # it decodes files; Pillow does so here
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        return importlib.import_module(f"torchvision.{part}")


def _repaired(part: str) -> ModuleType:
    """torchvision without its compiled part (an index has no build that fits this torch): two
    missing schemas stop its import.

    They are declared only after that very error: declaring them beside a whole torchvision would
    abort the process.
    """
    import torch

    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return _import(part)
