"""Define `Dataset`, the checked record of raw examples and their labels, and `BuiltIn`, the record
of a data set that is known by name; and check that a device's data fit the network of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from federated.errors import DataError
from federated.task import Card
from models.submodel import Network, Target

__all__ = [
    "PUBLISHED",
    "Array",
    "BuiltIn",
    "Dataset",
    "Indices",
    "Labels",
    "Values",
    "describe_examples",
    "explain_misfit",
]

Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

BLOCK = 4096  # examples per block: a float64 copy of all data would not fit a small device
TINY = 1e-30  # least standard deviation; float32 could round smaller ones to 0
OUTPUTS: dict[Target, str] = {"class": "classes", "value": "values", "token": "tokens"}
CHANNELS = 1, 3, 4  # of grey and colour images
LONGEST_NAME = 128  # of a tokenizer, as in `Card`


@dataclass(frozen=True, eq=False)
class Dataset:
    """Raw examples; only networks normalise them.

    name: name in messages
    x: training examples, uint8 or float32 [n, *inputs], images channel-first; texts int64 [n, T] of
        token ids, shorter ones padded with the padding token of their tokenizer
    y: classes, int64 [n]; values, float32 [n, outputs] ([n] becomes [n, 1]); or the next token
        after each, int64 [n, T]
    x_held, y_held: held-out examples of the same kind; may be of length 0
    outputs: number of classes (a device may hold only some of them), of values, or of tokens in the
        vocabulary
    target: what y holds
    users: int64 [n], person of each training example, or None
    sessions: int64 [n], recording of each training example, ascending in time, if examples of one
        recording overlap; else None
    classes: names of the classes in order; empty if unknown
    vocabulary: number of tokens that x may contain, if it holds texts with a class or with values;
        else 0
    tokenizer: any text that identifies the tokenizer of these tokens, such as the sha256 of its
        file; empty: unknown

    DataError: something is missing, empty, of different lengths or shapes, out of range, or not
        finite.
    """

    name: str
    x: Array
    y: Labels | Values
    x_held: Array
    y_held: Labels | Values
    outputs: int
    target: Target = "class"
    users: Labels | None = None
    sessions: Labels | None = None
    classes: tuple[str, ...] = ()
    vocabulary: int = 0
    tokenizer: str = ""

    def __post_init__(self) -> None:
        if self.target not in OUTPUTS:
            raise DataError(
                f"{self.name}: expected a target among {', '.join(OUTPUTS)}, found '{self.target}'"
            )
        if self.vocabulary and (self.vocabulary < 2 or self.target == "token"):
            raise DataError(
                f"{self.name}: expected a vocabulary of at least 2 tokens, and only for texts with "
                f"a class or with values, found {self.vocabulary} with a {self.target}"
            )
        if self.tokenizer and (not self.vocabulary or len(self.tokenizer) > LONGEST_NAME):
            raise DataError(
                f"{self.name}: expected the name of a tokenizer of at most {LONGEST_NAME} "
                f"characters, and only with a vocabulary, found '{self.tokenizer[:LONGEST_NAME]}' "
                f"with a vocabulary of {self.vocabulary} tokens"
            )
        if self.classes and len(self.classes) != self.outputs:
            raise DataError(
                f"{self.name}: expected names of {self.outputs} classes, found {len(self.classes)}"
            )
        least = 1 if self.target == "value" else 2
        if self.outputs < least:
            raise DataError(
                f"{self.name}: expected at least {least} {OUTPUTS[self.target]}, found "
                f"{self.outputs}"
            )
        if self.target == "value":
            for key in ("y", "y_held"):
                if getattr(self, key).ndim == 1:
                    object.__setattr__(self, key, getattr(self, key)[:, None])
        _check(self, "x", self.x, "y", self.y)
        if not len(self.x):
            raise DataError(f"{self.name}: expected at least 1 training example, found none")
        _check(self, "x_held", self.x_held, "y_held", self.y_held)
        if (self.x.shape[1:], self.x.dtype) != (self.x_held.shape[1:], self.x_held.dtype):
            want, found = (f"{part.dtype} {list(part.shape[1:])}" for part in (self.x, self.x_held))
            raise DataError(
                f"{self.name}: expected examples in x_held like those in x, {want}, found {found}"
            )
        for key, values in (("users", self.users), ("sessions", self.sessions)):
            if values is not None and (values.dtype != np.int64 or values.shape != (len(self.x),)):
                raise DataError(
                    f"{self.name}: expected {key} of int64 [{len(self.x)}], one per "
                    f"example in x, found {values.dtype} {list(values.shape)}"
                )

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one raw example."""
        return tuple(self.x.shape[1:])

    @property
    def tokens(self) -> int:
        """Number of tokens that x may contain; 0 if it holds numbers."""
        return self.outputs if self.target == "token" else self.vocabulary

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """Classes or tokens of the training part, ascending; empty for values."""
        if self.target == "value":
            return ()
        found = np.unique(self.y)
        return tuple((np.union1d(found, self.x) if self.target == "token" else found).tolist())

    def card(self) -> Card:
        """Return sizes and per-channel moments (population standard deviation) of the training
        part, in raw units. It contains no example.
        """
        mean, std = ((0.0,), (1.0,)) if self.tokens else _measure_moments(self.x)
        shift, scale = _measure_moments(self.y) if self.target == "value" else ((), ())
        return Card(
            self.name,
            self.inputs,
            self.x.dtype.name,
            self.outputs,
            len(self.x),
            len(self.x_held),
            mean,
            std,
            self.target,
            shift=shift,
            scale=scale,
            vocabulary=self.vocabulary,
            tokenizer=self.tokenizer,
        )


@dataclass(frozen=True)
class BuiltIn:
    """A data set that is known by name.

    load: from the folder of named data sets.
    about: its contents and the source of its files, for the table in docs/data.md.
    held: its held-out part, for the same table.
    """

    load: Callable[[Path], Dataset]
    about: str
    held: str


PUBLISHED = "the published test set"


def _check(dataset: Dataset, xs: str, x: Array, ys: str, y: Labels | Values) -> None:
    name, kinds = dataset.name, ("int64",) if dataset.tokens else ("uint8", "float32")
    if x.dtype.name not in kinds:
        raise DataError(f"{name}: expected {xs} of {' or '.join(kinds)}, found {x.dtype}")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"{name}: expected {xs} of shape [n, features] or [n, channels, height, "
            f"width], found {list(x.shape)}"
        )
    if x.ndim == 4 and min(x.shape[1:3]) > max(CHANNELS) and x.shape[3] in CHANNELS:
        raise DataError(
            f"{name}: expected {xs} of shape [n, channels, height, width], found {list(x.shape)}, "
            "which has the channels last; store x.transpose(0, 3, 1, 2), or x.transpose(0, 1, 3, "
            f"2) if there are {x.shape[1]} channels"
        )
    if dataset.vocabulary and x.ndim != 2:
        raise DataError(f"{name}: expected {xs} of texts as int64 [n, T], found {list(x.shape)}")
    _check_shape(dataset, ys, y, x)
    if len(x) != len(y):
        raise DataError(
            f"{name}: expected as many labels in {ys} as examples in {xs}, found "
            f"{len(y)} and {len(x)}"
        )
    if dataset.tokens:
        _check_range(name, xs, x, dataset.tokens)
    if dataset.target != "value":
        _check_range(name, ys, y, dataset.outputs)
    for key, array in ((xs, x), (ys, y)):
        _check_finite(name, key, array)


def _check_shape(dataset: Dataset, ys: str, y: Labels | Values, x: Array) -> None:
    kind, shape, said = {
        "class": ("int64", (), "a list of whole numbers (int64 [n])"),
        "value": ("float32", (dataset.outputs,), f"float32 [n, {dataset.outputs}]"),
        "token": ("int64", x.shape[1:], "the token after each in x (int64 [n, T])"),
    }[dataset.target]
    if y.dtype.name != kind or y.shape[1:] != shape or (dataset.target == "token" and x.ndim != 2):
        raise DataError(f"{dataset.name}: expected {ys} as {said}, found {y.dtype} {list(y.shape)}")


def _check_range(name: str, key: str, array: Array, outputs: int) -> None:
    wrong = np.argwhere((array < 0) | (array >= outputs))
    if len(wrong):
        what, where = "tokens" if key.startswith("x") else "labels", tuple(wrong[0].tolist())
        found = (
            f"{array[where]} at {', '.join(map(str, where))}; {len(wrong)} {what} are out of range"
        )
        if array[where] < 0:
            raise DataError(f"{name}: expected {what} of at least 0 in {key}, found {found}")
        raise DataError(f"{name}: expected {what} 0 to {outputs - 1} in {key}, found {found}")


def _check_finite(name: str, key: str, array: Array) -> None:
    if array.dtype != np.float32:
        return
    for start, block in _cut_blocks(array):
        if not np.isfinite(block).all():
            example = start + int(
                np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(axis=1))[0]
            )
            raise DataError(
                f"{name}: expected finite numbers in {key}, found NaN or infinity in "
                f"example {example}"
            )


def _cut_blocks(x: Array) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(x), BLOCK):
        yield start, x[start : start + BLOCK]


def _measure_moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel (axis 1), in two passes so that a large mean
    costs no precision.
    """
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    mean = sum(b.sum(axis=axes, dtype=np.float64) for _, b in _cut_blocks(x)) / count
    centre = mean.reshape(-1, *[1] * (x.ndim - 2))
    std = np.sqrt(sum(np.square(b - centre).sum(axis=axes) for _, b in _cut_blocks(x)) / count)
    return tuple(mean.tolist()), tuple(
        _limit_deviation(m, s) for m, s in zip(mean, std, strict=True)
    )


def _limit_deviation(mean: float, std: float) -> float:
    """Return the standard deviation, or 1 for a constant channel: dividing by a tiny number would
    blow up the first example that differs. Channels in small units are not constant.
    """
    return float(std) if std > max(1e-6 * math.fabs(mean), TINY) else 1.0


def describe_examples(form: Card | Dataset | Network) -> str:
    """Say which tokens the examples are, or that they are numbers."""
    if not form.vocabulary:
        return "numbers"
    maker = f" by the tokenizer '{form.tokenizer}'" if form.tokenizer else ""
    return f"texts of a vocabulary of {form.vocabulary} tokens{maker}"


def explain_misfit(card: Card | Dataset, network: Network) -> str:
    """Return why data do not fit a network; empty if they fit."""
    target = network.target
    if card.target != target:
        return f"this run needs data with a {target}, but {card.name} has a {card.target}"
    if (wanted := describe_examples(network)) != (found := describe_examples(card)):
        return (
            f"this run needs examples that are {wanted}, but those of {card.name} are {found}: "
            "join with such data (--data)"
            + (" that name their tokenizer" if card.vocabulary and not card.tokenizer else "")
        )
    if card.inputs != network.inputs:
        return (
            f"this run needs examples of shape {network.inputs}, but {card.name} has "
            f"{card.inputs}: join with data of that shape (--data)"
        )
    if card.outputs > network.outputs or (target == "value" and card.outputs != network.outputs):
        return (
            f"this run has {network.outputs} {OUTPUTS[target]}, but {card.name} has "
            f"{card.outputs}: join with data that fit (--data)"
        )
    return ""
