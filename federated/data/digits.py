"""Load the handwritten digits of the package, so that a first run needs no network."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np

from federated.data.custom_arrays import dataset
from federated.data.dataset import BuiltIn, Dataset

__all__ = ["DIGITS"]


def load_digits(root: Path) -> Dataset:
    """Return 1797 handwritten digits, 8x8, values 0 to 16.

    Alpaydin and Kaynak 1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0; see
    DIGITS.md beside it.
    """
    with (
        importlib.resources.files("federated.data").joinpath("digits.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        return dataset("digits", {key: arrays[key] for key in ("x", "y")})


DIGITS = BuiltIn(
    load_digits,
    "1797 handwritten digits, 8 x 8 (UCI, CC BY 4.0); part of the package",
    "a stratified 20 % that no agent trains on",
)
