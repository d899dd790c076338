"""The examples that a device trains on, and how its work is watched and stopped; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

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
]

Array = NDArray[Any]
Step = Callable[[int, int, float], None]
"""Called after every step: steps taken, steps in all, loss."""


class Stopped(Exception):
    """The caller's `stop` returned True between two steps."""


class Diverged(RuntimeError):
    """The loss is not finite."""


class TrainingData(Protocol):
    """What a training learns from.

    x: raw examples [n, *inputs].
    y: what each teaches [n, ...].
    labels: classes (or tokens) that the data hold, for the masked loss.
    """

    @property
    def x(self) -> Array: ...
    @property
    def y(self) -> Array: ...
    @property
    def labels(self) -> Sequence[int]: ...


class Examples(TrainingData, Protocol):
    """A device's data: those to train on, and x_held, y_held, those never trained on."""

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
    """How a task is watched and stopped.

    on_step: called after every training step.
    stop: asked between steps or batches whether to stop.
    effort: asked at the end for notes on what a training took; they are added to its own.
    """

    on_step: Step | None = None
    stop: Callable[[], bool] | None = None
    effort: Callable[[], Mapping[str, Any]] = dict


UNWATCHED = Execution()
