"""What a network says of raw examples, as a person or a program reads it: labels with their
confidence, or values. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from export.verify import Session
from federated.errors import DataError, ExportError

__all__ = ["Answer", "answer", "told"]

Array = npt.NDArray[Any]


class Answer(TypedDict, total=False):
    """What a network says of one example.

    label, confidence: of classes, the one of the largest logit and its softmax probability; of the
    next token, that after the last one. name: of the class, where the release has names. labels,
    confidences: of a text with hidden tokens, the same for each of them in their order. values: in
    raw units.
    """

    label: int
    confidence: float
    name: str
    labels: list[int]
    confidences: list[float]
    values: list[float]


def answer(session: Session, x: Array, classes: Sequence[str] = ()) -> list[Answer]:
    """One answer per raw example of x [n, *inputs]. classes: their names, if they have any.

    Raises DataError for what is no such example, ExportError for an output that is not finite.
    """
    found: list[Answer] = []
    for part in session.batches(x):
        if not np.isfinite(part).all():
            raise ExportError(
                f"{session.name}: expected a finite output, found NaN or infinity: the "
                "network is broken, or an input absurdly large"
            )
        examples = x[len(found) : len(found) + len(part)]
        found += [
            _said(session, example, output.astype(np.float64))
            for example, output in zip(examples, part, strict=True)
        ]
    if session.objective == "class" and len(classes) == session.outputs:
        return [Answer(**one, name=classes[one["label"]]) for one in found]
    return found


def told(found: Answer) -> str:
    """An answer as a line of text."""
    if "values" in found:
        return ", ".join(f"{value:g}" for value in found["values"])
    if "name" in found:
        return f"{found['name']} ({found['confidence']:.1%})"
    pairs = (
        zip(found["labels"], found["confidences"], strict=True)
        if "labels" in found
        else [(found["label"], found["confidence"])]
    )
    return ", ".join(f"{label} ({confidence:.1%})" for label, confidence in pairs)


def _said(session: Session, example: Array, output: Array) -> Answer:
    """The answer of one output, [outputs] or [outputs, T]."""
    if session.objective == "value":
        return Answer(values=output.tolist())
    shares = np.exp(output - output.max(axis=0))
    shares /= shares.sum(axis=0)
    if session.objective == "masked":
        hidden = shares[:, example == session.outputs]
        if not hidden.size:
            raise DataError(
                f"{session.name}: expected texts with hidden tokens, spelled "
                f"{session.outputs}, found one without: it asks nothing"
            )
        return Answer(
            labels=hidden.argmax(axis=0).tolist(), confidences=hidden.max(axis=0).tolist()
        )
    last = shares[:, -1] if session.objective == "next" else shares
    return Answer(label=int(last.argmax()), confidence=float(last.max()))
