"""Convert a network's outputs to answers: labels with confidences, or values. Does not import
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from export.onnx_session import Session
from federated.errors import DataError, ExportError

__all__ = ["Answer", "answer", "format_answer"]

Array = npt.NDArray[Any]


class Answer(TypedDict, total=False):
    """Answer for one example.

    label, confidence: class with the largest logit and its softmax probability; for next tokens,
        the token after the last one
    name: name of the class, if the release has names
    labels, confidences: for texts with hidden tokens, one of each per hidden token, in order
    values: in raw units
    """

    label: int
    confidence: float
    name: str
    labels: list[int]
    confidences: list[float]
    values: list[float]


def answer(session: Session, x: Array, classes: Sequence[str] = ()) -> list[Answer]:
    """Return one answer per raw example of x [n, *inputs].

    classes: names of the classes, if any
    DataError: the examples do not fit. ExportError: an output is not finite.
    """
    found: list[Answer] = []
    for part in session.batches(x):
        if not np.isfinite(part).all():
            raise ExportError(
                f"{session.name}: expected a finite output, found NaN or infinity: the "
                "network is broken, or an input is extremely large"
            )
        examples = x[len(found) : len(found) + len(part)]
        found += [
            _decode(session, example, output.astype(np.float64))
            for example, output in zip(examples, part, strict=True)
        ]
    if session.objective == "class" and len(classes) == session.outputs:
        return [Answer(**one, name=classes[one["label"]]) for one in found]
    return found


def format_answer(found: Answer) -> str:
    """Format an answer as a line of text."""
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


def _decode(session: Session, example: Array, output: Array) -> Answer:
    """Decode one output, [outputs] or [outputs, T]."""
    if session.objective == "value":
        return Answer(values=output.tolist())
    shares = np.exp(output - output.max(axis=0))
    shares /= shares.sum(axis=0)
    if session.objective == "masked":
        hidden = shares[:, example == session.outputs]
        if not hidden.size:
            raise DataError(
                f"{session.name}: expected texts with hidden tokens (id {session.outputs}), found "
                "one without"
            )
        return Answer(
            labels=hidden.argmax(axis=0).tolist(), confidences=hidden.max(axis=0).tolist()
        )
    last = shares[:, -1] if session.objective == "next" else shares
    return Answer(label=int(last.argmax()), confidence=float(last.max()))
