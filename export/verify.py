"""Exported graphs as a device sees them: checked by digest and by what they say of themselves, and
run by ONNX Runtime. No torch here.

A graph of ours has one input `input`, raw data [batch, *inputs] of uint8 or float32, or ids of
tokens [batch, T] of int64; and one output of float32: of classes `logits` [batch, outputs], of
tokens `logits` [batch, outputs, T], of values `values` [batch, outputs] in raw units. Its
properties have the entries METADATA; `objective` (models.submodel.Objective) says which it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from federated.errors import DataError, ExportError

__all__ = [
    "INPUT",
    "METADATA",
    "OUTPUTS",
    "TOKENS",
    "Array",
    "Output",
    "Session",
    "compare",
    "load",
    "reason",
    "sha256",
]

Array = npt.NDArray[Any]
Output = npt.NDArray[np.float32]

INPUT = "input"
# objective -> name of the output
OUTPUTS = {"class": "logits", "masked": "logits", "next": "logits", "value": "values"}
TOKENS = ("masked", "next")
METADATA = (
    "objective",
    "outputs",
    "preprocessing",
    "round",
    "run",
    "submodel",
    "versions",
    "weights",
)
TYPES: dict[str, np.dtype[Any]] = {
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
}
# examples per run: activations of all of a large file at once would not fit a small device
BATCH = 256
# of one run's output at most (64 MiB): logits of a whole vocabulary at each place of a text are
# many
NUMBERS = 2**24
REASONS = {  # what the runtime says, and what of it helps
    r"Opset (\d+) is under development.* domain (\S+) is till opset (\d+)": (
        "expected opset {2} of {1} at most, which {version} knows, found {0}"
    ),
    r"Unsupported model IR version: (\d+), max supported IR version: (\d+)": (
        "expected IR version {1} at most, which {version} knows, found {0}"
    ),
    r"No Op registered for (\S+) with domain_version of (-?\d+)": (
        "expected operators that {version} knows, found {0} of opset {1}"
    ),
    r"([\w.]+:\w+)\(-?\d+\) is not a registered function/op": (
        "expected operators that {version} knows, found {0}"
    ),
}
QUIET = 3  # errors only: warnings of the runtime go to stderr, past any logging


class Session:
    """One exported graph, loaded.

    inputs: shape of one raw example; dtype: of raw examples; objective: what was learned; outputs:
    number of classes or values, size of the vocabulary; metadata: run, round, submodel, ...;
    providers: what runs it, the first that can: not always what was asked for.
    """

    def __init__(
        self,
        model: bytes,
        name: str,
        *,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
    ) -> None:
        """threads: 0 leaves it to the runtime. Raises ExportError for what is no graph, or none of
        ours.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = QUIET
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # the runtime's errors share no base class of their own
            raise ExportError(f"{name}: {reason(error)}") from error
        self.name, self.providers = (
            name,
            tuple(str(provider) for provider in self._session.get_providers()),
        )
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        missing = [key for key in METADATA if key not in self.metadata]
        if missing or self.metadata["objective"] not in OUTPUTS:
            found = (
                f"a graph without {', '.join(missing)}"
                if missing
                else f"the objective '{self.metadata['objective']}'"
            )
            raise ExportError(
                f"{name}: expected an exported submodel, found {found} in its properties"
            )
        self.objective = self.metadata["objective"]
        self.inputs, self.dtype = self._input()
        self.outputs = self._output()

    def predict(self, x: Array) -> Output:
        """What the graph says of raw examples [n, *inputs]: [n, outputs], of tokens [n, outputs,
        T]. Raises DataError for what is no such example.
        """
        places = self.inputs if self.objective in TOKENS else ()
        return np.concatenate([np.zeros((0, self.outputs, *places), np.float32), *self.batches(x)])

    def batches(self, x: Array) -> Iterator[Output]:
        """The same, a part at a time, for what is too large as a whole."""
        self._fit(x)
        places = self.inputs[0] if self.objective in TOKENS else 1
        step = min(BATCH, max(1, NUMBERS // (self.outputs * places)))
        for start in range(0, len(x), step):
            yield self._session.run(None, {INPUT: x[start : start + step]})[0]

    def _fit(self, x: Array) -> None:
        if tuple(x.shape[1:]) != self.inputs or x.dtype != self.dtype or x.ndim == 0:
            raise DataError(
                f"{self.name}: expected {self.dtype} of shape [n, "
                f"{', '.join(map(str, self.inputs))}], found {x.dtype} {list(x.shape)}"
            )
        if self.objective in TOKENS and x.size and not 0 <= x.min() <= x.max() <= self.outputs:
            raise DataError(
                f"{self.name}: expected tokens 0 to {self.outputs - 1}, or "
                f"{self.outputs} for a hidden one, found {x.min()} to {x.max()}"
            )

    def _input(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        found, types = self._session.get_inputs(), _types(self.objective)
        good = (
            len(found) == 1
            and found[0].name == INPUT
            and found[0].type in types
            and len(found[0].shape) > 1
        )
        if (
            not good
            or not isinstance(found[0].shape[0], str | None)
            or not all(isinstance(size, int) for size in found[0].shape[1:])
        ):
            wanted = " or ".join(dtype.name for dtype in types.values())
            raise ExportError(
                f"{self.name}: expected one input '{INPUT}' of {wanted} [batch, ...], "
                f"found {_told(found)}"
            )
        return tuple(found[0].shape[1:]), types[found[0].type]

    def _output(self) -> int:
        found, name = self._session.get_outputs(), OUTPUTS[self.objective]
        places = list(self.inputs) if self.objective in TOKENS else []
        good = (
            len(found) == 1
            and found[0].name == name
            and found[0].type == "tensor(float)"
            and found[0].shape[2:] == places
        )
        if not good or len(found[0].shape) < 2 or not isinstance(found[0].shape[1], int):
            raise ExportError(
                f"{self.name}: expected one output '{name}' of float32 "
                f"{['batch', 'outputs', *places]}, found {_told(found)}"
            )
        return int(found[0].shape[1])


def load(
    path: Path,
    digest: str | None = None,
    *,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    threads: int = 0,
) -> Session:
    """Reads a graph; with a digest (sha256, hexadecimal), only the file that has it.

    Raises ExportError when it is missing, another file than the digest says, corrupt, or no graph
    of ours.
    """
    try:
        # what was checked is what runs: the path is not opened a second time
        model = path.read_bytes()
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from error
    found = hashlib.sha256(model).hexdigest()
    if digest is not None and found != digest.lower():
        raise ExportError(f"{path}: expected sha256 {digest}, found {found}")
    return Session(model, str(path), providers=providers, threads=threads)


def compare(path: Path, x: Array, wanted: Output) -> float:
    """Largest absolute difference between what the graph says of `x` and what is wanted of it.
    Raises ExportError, DataError.
    """
    found = load(path).predict(x)
    if not len(found) or found.shape != wanted.shape:
        raise ExportError(
            f"{path}: expected an output of shape {list(wanted.shape)} to compare, "
            f"found {list(found.shape)}"
        )
    return float(np.abs(found - wanted).max())


def reason(error: Exception) -> str:
    """Why a graph does not load: what it asks of the runtime and what that has, or else the
    runtime's own words without the place in its source.
    """
    said, version = " ".join(str(error).split()), f"onnxruntime {onnxruntime.__version__}"
    for pattern, words in REASONS.items():
        if found := re.search(pattern, said):
            return words.format(*found.groups(), version=version)
    return (
        "expected an ONNX file, found one that does not load: "
        f"{re.sub(r'/onnxruntime_src/.*?[)] (?=[A-Z])', '', said)[:300]}"
    )


def sha256(path: Path) -> str:
    """Digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _types(objective: str) -> dict[str, np.dtype[Any]]:
    return {
        name: dtype
        for name, dtype in TYPES.items()
        if (name == "tensor(int64)") == (objective in TOKENS)
    }


def _told(found: Sequence[Any]) -> str:
    return ", ".join(f"'{value.name}' {value.type} {value.shape}" for value in found) or "none"
