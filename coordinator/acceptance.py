"""What an update must be to be folded: pure functions of what was asked and what came. Each raises Refused and says what, expected and found.

Acceptance never depends on who else came, or came first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from federated.errors import Refused
from federated.task import Update
from federated.wire import tensors
from models.families import statistics
from models.slicing import Plan

__all__ = ["check_scores", "check_statistics", "check_training", "expected"]

Shapes = Mapping[str, tuple[int, ...]]


def expected(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a plan has a device send: its rows' local sides."""
    shapes: dict[str, tuple[int, ...]] = {}
    for row in plan.rows:
        extent = tuple(stop for _, stop in row.here)
        shapes[row.local] = tuple(map(max, shapes[row.local], extent)) if row.local in shapes else extent
    return shapes


def check_training(update: Update, shapes: Shapes) -> None:
    """New weights of these shapes, from at least one example and one step."""
    tensors.check(update.tensors, shapes)
    if update.samples < 1 or update.steps < 1:
        raise Refused(f"update of {update.agent}: expected at least 1 sample and 1 step, found {update.samples} and {update.steps}")
    labels, classes = update.notes.get("labels", []), update.submodel.network.outputs
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < classes for label in labels):
        raise Refused(f"update of {update.agent}: expected labels from 0 to {classes - 1}, found {str(labels)[:100]}")
    finite(update, "loss")


def check_statistics(update: Update) -> None:
    """Running means and variances of the submodel's norms, from at least one batch."""
    tensors.check(update.tensors, statistics(update.submodel))
    whole(update, "batches", 1)
    negative = [name for name, value in update.tensors.items() if name.endswith("running_var") and (value < 0).any()]
    if negative:
        raise Refused(f"statistics of {update.agent}: expected variances of at least 0, found negative ones in {negative[0]}")


def check_scores(update: Update) -> None:
    """Some of the examples right, and a mean loss; no tensors."""
    tensors.check(update.tensors, {})
    finite(update, "loss")
    correct = whole(update, "correct", 0)
    if correct > update.samples:
        raise Refused(f"scores of {update.agent}: {correct} right of {update.samples} examples")


def finite(update: Update, note: str) -> float:
    value = update.notes.get(note)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(f"{update.work} of {update.agent}: expected '{note}' to be a finite number, found {value!r}")
    return float(value)


def whole(update: Update, note: str, least: int) -> int:
    value = update.notes.get(note)
    if type(value) is not int or value < least:
        raise Refused(f"{update.work} of {update.agent}: expected '{note}' to be a whole number of at least {least}, found {value!r}")
    return value
