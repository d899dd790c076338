"""One record of raw examples with their labels, checked where it is made, and the split that holds some of them out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from federated.errors import DataError
from federated.task import Card

__all__ = ["Array", "Dataset", "Indices", "Labels", "hold_out"]

Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

BLOCK = 4096  # examples whose moments are taken at once: a copy in float64 of a whole data set would not fit a small device


@dataclass(frozen=True, eq=False)
class Dataset:
    """Raw examples; networks normalise them, nothing else does.

    name: what people call it; it opens every message about it.
    x: examples to train on, uint8 or float32, [n, *inputs], images channel-first. y: their labels, int64 [n].
    x_held, y_held: examples never trained on, of the same kind; both may be of length 0.
    classes: number of outputs of a network for this data; labels are 0 .. classes - 1, and a device may hold only some of them.

    Raises DataError when something is missing, empty, of different lengths or shapes, out of range, or not finite.
    """

    name: str
    x: Array
    y: Labels
    x_held: Array
    y_held: Labels
    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise DataError(f"{self.name}: expected at least 2 classes, found {self.classes}")
        _check(self.name, "x", self.x, "y", self.y, self.classes)
        if not len(self.x):
            raise DataError(f"{self.name}: expected at least 1 training example, found none")
        _check(self.name, "x_held", self.x_held, "y_held", self.y_held, self.classes)
        if (self.x.shape[1:], self.x.dtype) != (self.x_held.shape[1:], self.x_held.dtype):
            want, found = (f"{part.dtype} {list(part.shape[1:])}" for part in (self.x, self.x_held))
            raise DataError(f"{self.name}: expected examples in x_held like those in x, {want}, found {found}")

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The classes that the training part holds, ascending."""
        return tuple(np.unique(self.y).tolist())

    def card(self) -> Card:
        """Sizes and per-channel moments (population standard deviation) of the training part, in raw units: no example leaves with it."""
        mean, std = _moments(self.x)
        inputs = tuple(self.x.shape[1:])
        return Card(self.name, inputs, self.x.dtype.name, self.classes, len(self.x), len(self.x_held), mean, std)


def hold_out(y: Labels, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Splits 0 .. n - 1 into examples to train on and examples to hold out, each ascending.

    About `fraction` of every class is held out, by largest remainders of fraction x count; at least 1 example in all.
    A class keeps an example to train on where it can. Raises DataError when there is less than one example for each part.
    """
    if len(y) < 2:
        raise DataError(f"holding out {fraction:.0%}: expected at least 2 examples, found {len(y)}")
    classes, counts = np.unique(y, return_counts=True)
    shares = _shares(counts, fraction, rng)
    held = np.sort(np.concatenate([rng.choice(np.flatnonzero(y == c), n, replace=False) for c, n in zip(classes, shares, strict=True)]))
    return np.setdiff1d(np.arange(len(y)), held, assume_unique=True), held


def _shares(counts: Indices, fraction: float, rng: np.random.Generator) -> Indices:
    """How many of each class to hold out."""
    want = fraction * counts
    take: Indices = np.minimum(np.floor(want), counts - 1).astype(np.intp)
    short = max(1, round(fraction * int(counts.sum()))) - int(take.sum())
    ties = rng.permutation(len(counts))
    for c in ties[np.argsort(-(want - take)[ties], kind="stable")]:
        if short > 0 and take[c] < counts[c] - 1:
            take[c] += 1
            short -= 1
    if not take.any():  # every class has one example: one of them has to go
        take[ties[0]] = 1
    return take


def _check(name: str, xs: str, x: Array, ys: str, y: Labels, classes: int) -> None:
    if x.dtype not in (np.uint8, np.float32):
        raise DataError(f"{name}: expected {xs} of uint8 or float32, found {x.dtype}")
    if y.dtype != np.int64 or y.ndim != 1:
        raise DataError(f"{name}: expected {ys} as a list of whole numbers (int64 [n]), found {y.dtype} {list(y.shape)}")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{name}: expected {xs} of shape [n, features] or [n, channels, height, width], found {list(x.shape)}")
    if len(x) != len(y):
        raise DataError(f"{name}: expected as many labels in {ys} as examples in {xs}, found {len(y)} and {len(x)}")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if len(wrong):
        raise DataError(f"{name}: expected labels 0 to {classes - 1} in {ys}, found {y[wrong[0]]} at {wrong[0]} ({len(wrong)} such)")
    for start, block in _blocks(x):
        if x.dtype == np.float32 and not np.isfinite(block).all():
            example = start + int(np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))[0])
            raise DataError(f"{name}: expected finite numbers in {xs}, found NaN or infinity in example {example}")


def _blocks(x: Array) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(x), BLOCK):
        yield start, x[start : start + BLOCK]


def _moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel (axis 1), in two passes so that a large mean costs no digits."""
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    mean = sum(b.sum(axis=axes, dtype=np.float64) for _, b in _blocks(x)) / count
    centre = mean.reshape(-1, *[1] * (x.ndim - 2))
    std = np.sqrt(sum(np.square(b - centre).sum(axis=axes) for _, b in _blocks(x)) / count)
    return tuple(mean.tolist()), tuple(_spread(m, s) for m, s in zip(mean, std, strict=True))


def _spread(mean: float, std: float) -> float:
    """A channel without spread divides by 1: a tiny floor would blow up the first example that differs."""
    return float(std) if std > 1e-6 * max(1.0, math.fabs(mean)) else 1.0
