"""Exported graphs as a device sees them: checked by digest and by what they say of themselves, and run by ONNX Runtime. No torch here.

A graph of ours has one input `image`, raw data [batch, *inputs] of uint8 or float32, one output `logits` float32 [batch, classes], and
the entries METADATA among its properties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]

from federated.errors import DataError, ExportError

__all__ = ["INPUT", "METADATA", "OUTPUT", "Array", "Logits", "Session", "compare", "load", "sha256"]

Array = npt.NDArray[Any]
Logits = npt.NDArray[np.float32]

INPUT, OUTPUT = "image", "logits"
METADATA = ("classes", "preprocessing", "round", "run", "submodel", "versions", "weights")
TYPES: dict[str, np.dtype[Any]] = {"tensor(uint8)": np.dtype(np.uint8), "tensor(float)": np.dtype(np.float32)}
BATCH = 256  # examples per run: activations of all of a large file at once would not fit a small device
QUIET = 3  # errors only: warnings of the runtime go to stderr, past any logging


class Session:
    """One exported graph, loaded.

    inputs: shape of one raw example; dtype: of raw examples; classes: number of logits; metadata: run, round, submodel, ...
    """

    def __init__(self, model: bytes, name: str, *, providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 0) -> None:
        """threads: 0 leaves it to the runtime. Raises ExportError for what is no graph, or none of ours."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = QUIET
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # the runtime's errors share no base class of their own
            raise ExportError(f"{name}: expected an ONNX file, found one that does not load: {' '.join(str(error).split())[:300]}") from error
        self.name = name
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.inputs, self.dtype = self._input()
        self.classes = self._output()
        missing = [key for key in METADATA if key not in self.metadata]
        if missing:
            raise ExportError(f"{name}: expected an exported submodel, found a graph without {', '.join(missing)} in its properties")

    def predict(self, x: Array) -> Logits:
        """Logits [n, classes] of raw examples [n, *inputs]. Raises DataError for another shape or dtype."""
        if tuple(x.shape[1:]) != self.inputs or x.dtype != self.dtype or x.ndim == 0:
            raise DataError(f"{self.name}: expected {self.dtype} of shape [n, {', '.join(map(str, self.inputs))}], found {x.dtype} {list(x.shape)}")
        parts = [self._session.run([OUTPUT], {INPUT: x[start : start + BATCH]})[0] for start in range(0, len(x), BATCH)]
        return np.concatenate([np.zeros((0, self.classes), np.float32), *parts])

    def _input(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        found = self._session.get_inputs()
        good = len(found) == 1 and found[0].name == INPUT and found[0].type in TYPES and len(found[0].shape) > 1
        if not good or not isinstance(found[0].shape[0], str | None) or not all(isinstance(size, int) for size in found[0].shape[1:]):
            raise ExportError(f"{self.name}: expected one input '{INPUT}' of uint8 or float32 [batch, ...], found {_told(found)}")
        return tuple(found[0].shape[1:]), TYPES[found[0].type]

    def _output(self) -> int:
        found = self._session.get_outputs()
        good = len(found) == 1 and found[0].name == OUTPUT and found[0].type == "tensor(float)" and len(found[0].shape) == 2
        if not good or not isinstance(found[0].shape[1], int):
            raise ExportError(f"{self.name}: expected one output '{OUTPUT}' of float32 [batch, classes], found {_told(found)}")
        return found[0].shape[1]


def load(path: Path, digest: str | None = None, *, providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 0) -> Session:
    """Reads a graph; with a digest (sha256, hexadecimal), only the file that has it.

    Raises ExportError when it is missing, another file than the digest says, corrupt, or no graph of ours.
    """
    try:
        model = path.read_bytes()  # what was checked is what runs: the path is not opened a second time
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from error
    found = hashlib.sha256(model).hexdigest()
    if digest is not None and found != digest.lower():
        raise ExportError(f"{path}: expected sha256 {digest}, found {found}")
    return Session(model, str(path), providers=providers, threads=threads)


def compare(path: Path, x: Array, logits: Array) -> float:
    """Largest absolute difference between the graph's logits of `x` and the given ones [n, classes]. Raises ExportError."""
    found = load(path).predict(x)
    if not len(found) or found.shape != logits.shape:
        raise ExportError(f"{path}: expected logits of shape {list(logits.shape)} to compare, found {list(found.shape)}")
    return float(np.abs(found - logits).max())


def sha256(path: Path) -> str:
    """Digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _told(found: Sequence[Any]) -> str:
    return ", ".join(f"'{value.name}' {value.type} {value.shape}" for value in found) or "none"
