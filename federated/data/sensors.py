"""Windows of motion sensors, of people with phones and watches: the data set that is federated by
nature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from federated.data.arrays import UNREADABLE
from federated.data.dataset import Dataset
from federated.errors import DataError

__all__ = ["har"]

KEYS = ("x", "y", "subject", "execution", "classes")
MANY = 1000  # more recordings than one person made


def har(root: Path) -> Dataset:
    """9777 windows of 100 samples of accelerometer and gyroscope, float32 [6, 100], of 23 people
    doing five things.

    GeoTecINIT/sp-sw-har-dataset, doi 10.5281/zenodo.8398688, CC BY 4.0. Windows overlap by half, so
    that no split may be random: the people are the users, each execution of the course a session.
    WALKING is 48 %. Raises DataError.
    """
    path = root / "har" / "windows100.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y, subject, execution, classes = (arrays[key] for key in KEYS)
    except FileNotFoundError:
        raise DataError(
            f"har: no file {path}; copy it there, or name its place by --data-root"
        ) from None
    except UNREADABLE as error:
        raise DataError(
            f"har: expected an .npz file of arrays {', '.join(KEYS)} in {path}: {error}"
        ) from error
    x, users = np.ascontiguousarray(x.transpose(0, 2, 1)), subject.astype(np.int64)
    y = y.astype(np.int64)
    return Dataset(
        "har", x, y, x[:0], y[:0], len(classes), users=users, sessions=users * MANY + execution
    )
