"""Inference on a device with what a run released: read inputs, run the graph, answer. No torch here."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from export.verify import Session, load
from federated.errors import DataError, UsageError

__all__ = ["Answer", "answer", "command", "read", "shaped", "told"]

Array = npt.NDArray[Any]


class Answer(TypedDict, total=False):
    """What a network says of one example.

    label, confidence: of classes, the one of the largest logit and its softmax probability; of the next token, that after the last one.
    labels, confidences: of a text with hidden tokens, the same for each of them in their order. values: in raw units.
    """

    label: int
    confidence: float
    labels: list[int]
    confidences: list[float]
    values: list[float]


def answer(session: Session, x: Array) -> list[Answer]:
    """One answer per raw example of x [n, *inputs]. Raises DataError for what is no such example, or an output that is not finite."""
    found: list[Answer] = []
    for part in session.batches(x):
        if not np.isfinite(part).all():
            raise DataError(f"{session.name}: expected a finite output, found NaN or infinity: the inputs are not finite, or the network is broken")
        examples = x[len(found) : len(found) + len(part)]
        found += [_said(session, example, output.astype(np.float64)) for example, output in zip(examples, part, strict=True)]
    return found


def told(found: Answer) -> str:
    """An answer as a line of text."""
    if "values" in found:
        return ", ".join(f"{value:g}" for value in found["values"])
    pairs = zip(found["labels"], found["confidences"], strict=True) if "labels" in found else [(found["label"], found["confidence"])]
    return ", ".join(f"{label} ({confidence:.1%})" for label, confidence in pairs)


def read(path: Path | None, session: Session) -> Array:
    """Raw examples [n, *inputs] for a session from a .npy, .npz or .json file, or as JSON from standard input when `path` is None.

    An .npz file holds `x`, or one array only; JSON is nested lists. One example may come without its first axis.
    Raises DataError when that cannot be read, or does not fit.
    """
    name = "standard input" if path is None else str(path)
    try:
        value = _parsed(sys.stdin.read(), name) if path is None else _loaded(path, name)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:  # text that is no JSON, and pickles, are ValueErrors
        why = "it holds pickled objects, or no arrays at all" if "allow_pickle" in str(error) else error
        raise DataError(f"{name}: cannot be read as raw examples: {why}") from error
    return shaped(value, session, name)


def shaped(value: Array, session: Session, name: str) -> Array:
    """The examples in the shape and dtype that a session takes, if no value changes by it. Raises DataError."""
    if value.shape == session.inputs or (session.inputs[0] == 1 and value.shape == session.inputs[1:] and value.ndim):
        value = value[None]
    if session.inputs[0] == 1 and value.ndim and value.shape[1:] == session.inputs[1:]:
        value = value[:, None]
    if value.ndim == 0 or value.shape[1:] != session.inputs:
        raise DataError(f"{name}: expected raw examples of shape [n, {', '.join(map(str, session.inputs))}], found {list(value.shape)}")
    if value.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, found {value.dtype}")
    if not np.isfinite(value).all():
        raise DataError(f"{name}: expected finite numbers, found NaN or infinity")
    if session.dtype == np.int64 and not (value == np.floor(value)).all():
        raise DataError(f"{name}: expected ids of tokens, which are whole numbers, found others")
    if session.dtype == np.uint8 and value.size and not ((value >= 0) & (value <= 255) & (value == np.floor(value))).all():
        raise DataError(f"{name}: expected whole numbers from 0 to 255 as in the data it was trained on, found {value.min():g} to {value.max():g}")
    return np.ascontiguousarray(value, session.dtype)


def command(
    *,
    broker: str | None,
    model: Path | None,
    run: str | None,
    name: str,
    submodel: str | None,
    sha256: str | None,
    store: Path,
    wait: float,
    inputs: Sequence[Path],
    form: str,
) -> str:
    """What `edge-agent infer` prints: one line per example, or one JSON object.

    Raises UsageError, LinkError, FleetError, ExportError, DataError.
    """
    if (broker is None) == (model is None):
        raise UsageError("name either --broker to fetch a network from, or --model FILE")
    if sha256 is not None and model is None:
        raise UsageError("--sha256 is of --model FILE: what comes from a broker is checked anyway")
    path = model
    if path is None:
        from edge_agent.fetch import fetch_from  # MQTT, which a file on this device does not need

        path = fetch_from(str(broker), run, submodel or name, store, wait)
    session = load(path, sha256)
    sources: Sequence[Path | None] = inputs or [None]
    rows = [(source, found) for source in sources for found in answer(session, read(source, session))]
    if form == "json":
        about = {key: session.metadata[key] for key in ("run", "submodel")} | {"round": int(session.metadata["round"]), "model": str(path)}
        return json.dumps({**about, "answers": [{"input": str(source or "-"), **found} for source, found in rows]})
    return "\n".join(f"{source or '-'}: {told(found)}" for source, found in rows)


def _said(session: Session, example: Array, output: Array) -> Answer:
    """The answer of one output, [outputs] or [outputs, T]."""
    if session.objective == "value":
        return Answer(values=output.tolist())
    shares = np.exp(output - output.max(axis=0))
    shares /= shares.sum(axis=0)
    if session.objective == "masked":
        hidden = shares[:, example == session.outputs]
        if not hidden.size:
            raise DataError(f"{session.name}: expected texts with hidden tokens, spelled {session.outputs}, found one without: it asks nothing")
        return Answer(labels=hidden.argmax(axis=0).tolist(), confidences=hidden.max(axis=0).tolist())
    last = shares[:, -1] if session.objective == "next" else shares
    return Answer(label=int(last.argmax()), confidence=float(last.max()))


def _parsed(text: str, name: str) -> Array:
    try:
        return np.asarray(json.loads(text))
    except RecursionError as error:
        raise DataError(f"{name}: nested too deeply") from error


def _loaded(path: Path, name: str) -> Array:
    if path.suffix == ".json":
        return _parsed(path.read_text(encoding="utf-8"), name)
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{name}: expected a .npy, .npz or .json file")
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        key = "x" if "x" in found else found.files[0] if len(found.files) == 1 else None
        if key is None:
            raise DataError(f"{name}: expected an array 'x', or one array only, found {', '.join(found.files) or 'none'}")
        return np.asarray(found[key])
