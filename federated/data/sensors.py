"""Windows of motion sensors of people with phones and watches, a naturally federated data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from federated.data.arrays import UNREADABLE
from federated.data.dataset import Dataset
from federated.errors import DataError

__all__ = ["har"]

KEYS = ("x", "y", "subject", "execution", "classes")
MANY = 1000  # more than the recordings of one person


def har(root: Path) -> Dataset:
    """Return 9777 windows of 100 samples of accelerometer and gyroscope, float32 [6, 100], of 23
    people in five activities.

    GeoTecINIT/sp-sw-har-dataset, doi 10.5281/zenodo.8398688, CC BY 4.0. Windows overlap by half, so
    a random split would leak: people are the users, each execution of the course a session. WALKING
    is 48 %. DataError: the file is missing or unusable.
    """
    path = root / "har" / "windows100.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y, subject, execution, classes = (arrays[key] for key in KEYS)
    except FileNotFoundError:
        raise DataError(f"har: {path} does not exist; copy it there, or set --data-root") from None
    except UNREADABLE as error:
        raise DataError(
            f"har: expected an .npz file of arrays {', '.join(KEYS)} in {path}: {error}"
        ) from error
    x, users = np.ascontiguousarray(x.transpose(0, 2, 1)), subject.astype(np.int64)
    y = y.astype(np.int64)
    return Dataset(
        "har", x, y, x[:0], y[:0], len(classes), users=users, sessions=users * MANY + execution
    )
