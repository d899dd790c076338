"""MNIST and Fashion-MNIST by torchvision's own loaders, imported only when called."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from federated.data.dataset import Array, Dataset, Labels
from federated.errors import DataError, MissingExtra
from models.vision import torchvision

__all__ = ["fashion_mnist", "mnist"]


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
        return torchvision("datasets")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the data set {name}", "train", (error.name or "torchvision").partition(".")[0]) from error
