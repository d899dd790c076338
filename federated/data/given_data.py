"""Give a name to a data set that a Python program passed as arrays."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from federated.data.custom_arrays import dataset
from federated.data.dataset import Dataset
from federated.errors import DataError, add_article, describe_value
from models.given_objects import give

__all__ = ["give_data"]

KEYS = ("x", "y", "x_held", "y_held")


def give_data(given: object) -> str:
    """Register data, and return their name, which is the same for equal data in every process.

    given: (x, y) or (x, y, x_held, y_held) of arrays or tensors, as in
        `federated.data.custom_arrays`, or a Dataset
    DataError: they are something else, or unusable
    """
    if not isinstance(given, Dataset) and not (isinstance(given, tuple) and len(given) in (2, 4)):
        raise DataError(
            "data: expected a name, a path, a function, a Dataset, or arrays as (x, y) or "
            f"(x, y, x_held, y_held), found {_describe(given)}"
        )
    made = given if isinstance(given, Dataset) else _read(given)
    digest = hashlib.sha256()
    for key in KEYS:
        array = np.ascontiguousarray(getattr(made, key))
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    label = f"data_{digest.hexdigest()[:8]}"
    return give(label, GivenData(replace(made, name=label)))


class GivenData:
    """A function that returns a data set, as `federated.data.loading` calls it."""

    def __init__(self, made: Dataset) -> None:
        self.made = made

    def __call__(self, root: Path) -> Dataset:
        return self.made


def _read(given: tuple[Any, ...]) -> Dataset:
    """Return arrays as a Dataset. DataError: they are unusable."""
    arrays = {}
    for key, value in zip(KEYS, given, strict=False):
        try:
            arrays[key] = np.asarray(value)
        except Exception as error:  # whatever an array of another library raises
            raise DataError(f"data: {key} is not an array: {error}") from error
    return dataset("data", arrays)


def _describe(given: object) -> str:
    if isinstance(given, tuple | list):
        return f"{add_article(type(given).__name__)} of {len(given)}"
    return describe_value(given)
