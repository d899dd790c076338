"""MNIST and Fashion-MNIST by torchvision's own loaders: the one place that imports torchvision, and only when called."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from federated.data.dataset import Array, Dataset, Labels
from federated.errors import DataError, MissingExtra

__all__ = ["fashion_mnist", "mnist"]

MISSING = "operator torchvision::nms does not exist"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch.library.Library takes its schemas back when it is collected


def mnist(root: Path) -> Dataset:
    """60,000 and 10,000 handwritten digits, uint8 [1, 28, 28] (LeCun, Cortes and Burges 1998). Raises DataError, MissingExtra."""
    return _load("mnist", "MNIST", root)


def fashion_mnist(root: Path) -> Dataset:
    """60,000 and 10,000 pictures of clothes, uint8 [1, 28, 28] (Xiao et al. 2017, arXiv:1708.07747; MIT). Raises DataError, MissingExtra."""
    return _load("fashion-mnist", "FashionMNIST", root)


def _load(name: str, loader: str, root: Path) -> Dataset:
    datasets = _datasets(name)
    from filelock import FileLock  # torch brings it

    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):  # agents of one machine start at once; only one may download and unpack
            parts = [getattr(datasets, loader)(str(root), train=train, download=True) for train in (True, False)]
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(
            f"{name}: neither in {root / loader / 'raw'} nor to be downloaded ({' '.join(str(error).split())}); "
            f"connect this machine once, or copy its four -ubyte.gz files there, or name their place by --data-root"
        ) from error
    (x, y), (x_held, y_held) = (_arrays(part) for part in parts)
    return Dataset(name, x, y, x_held, y_held, len(parts[0].classes))


def _arrays(part: Any) -> tuple[Array, Labels]:
    return part.data.numpy()[:, None], part.targets.numpy().astype(np.int64, copy=False)


def _datasets(name: str) -> ModuleType:
    try:
        return _import()
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the data set {name}", "train", (error.name or "torchvision").partition(".")[0]) from error
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
        return _repaired()


def _import() -> ModuleType:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")  # it decodes files; these sets hold none
        return importlib.import_module("torchvision.datasets")


def _repaired() -> ModuleType:
    """torchvision without its compiled part (an index has no build that fits this torch): two missing schemas stop its import.

    They are declared only after that very error: declaring them beside a whole torchvision would abort the process.
    """
    import torch

    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return _import()
