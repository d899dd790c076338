"""What a caller passes to a training: the examples and their batches, and callbacks to watch and
stop it.

Torch-free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from federated.errors import DataError

__all__ = [
    "UNWATCHED",
    "Array",
    "Diverged",
    "Examples",
    "Execution",
    "Step",
    "Stopped",
    "TrainingData",
    "TrainingSet",
    "batch_bounds",
    "check_examples",
]

Array = NDArray[Any]
Step = Callable[[int, int, float], None]
"""Callback after every step: steps taken, planned steps, loss."""


class Stopped(Exception):
    """The caller's `stop` returned True between two steps."""


class Diverged(RuntimeError):
    """The loss is not finite."""


class TrainingData(Protocol):
    """Examples of one training.

    x: raw examples [n, *inputs]
    y: their labels [n, ...]
    labels: classes (or tokens) in the data, for the masked loss
    """

    @property
    def x(self) -> Array: ...
    @property
    def y(self) -> Array: ...
    @property
    def labels(self) -> Sequence[int]: ...


class Examples(TrainingData, Protocol):
    """Data of a device: training examples, and the held-out examples x_held and y_held."""

    @property
    def x_held(self) -> Array: ...
    @property
    def y_held(self) -> Array: ...


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """`TrainingData` made of arrays."""

    x: Array
    y: Array
    labels: Sequence[int] = ()


@dataclass(frozen=True)
class Execution:
    """Ways to watch and stop a task.

    on_step: called after every training step
    stop: returns True to stop, asked between steps or batches
    effort: returns notes on the cost of a training, added to its own at the end
    """

    on_step: Step | None = None
    stop: Callable[[], bool] | None = None
    effort: Callable[[], Mapping[str, Any]] = dict


UNWATCHED = Execution()


def batch_bounds(examples: int, batch: int) -> list[tuple[int, int]]:
    """Return (start, end) of each batch. A last batch of one example joins the one before it, since
    batch norm needs two.
    """
    edges = [*range(0, examples, batch), examples]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1:
        del edges[-2]
    return list(itertools.pairwise(edges))


def check_examples(x: Array, y: Array) -> None:
    """Raise DataError without examples, or without a label for each."""
    if not len(y) or len(x) != len(y):
        raise DataError(
            "training data: expected at least 1 example and as many labels, found "
            f"{len(x)} and {len(y)}"
        )
