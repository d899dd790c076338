"""Load, check and run exported graphs with ONNX Runtime, as a device does. Does not import
torch.

An exported graph has one input `input`: raw data [batch, *inputs] of uint8 or float32, or token ids
[batch, T] of int64. It has one output of float32: for classes `logits` [batch, outputs], for tokens
`logits` [batch, outputs, T], for values `values` [batch, outputs] in raw units. Its properties
include METADATA; `objective` (models.submodel.Objective) says which kind it is, and `vocabulary`
gives the number of tokens of texts with a class or with values.
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

from federated.errors import DataError, ExportError, explain_os_errors
from federated.onnx_graph_contents import refuse_external_files, refuse_foreign_operators

__all__ = [
    "INPUT",
    "METADATA",
    "NO_ROUND",
    "OUTPUTS",
    "TOKENS",
    "Array",
    "Output",
    "Session",
    "explain_load_error",
    "load",
    "read_file",
]

Array = npt.NDArray[Any]
Output = npt.NDArray[np.float32]

INPUT = "input"
# objective -> name of the output
OUTPUTS = {"class": "logits", "masked": "logits", "next": "logits", "value": "values"}
TOKENS = ("masked", "next")
NO_ROUND = 0  # `round` of a graph that is not from a run
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
# examples per call: the activations of a whole file would exceed a small device's memory
BATCH = 256
# maximum number of values in the output of one call (64 MiB): the logits of texts are large
MAX_VALUES = 2**24
REASONS = {  # pattern of the runtime's message -> clearer message
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
QUIET = 3  # errors only: the runtime writes warnings to stderr, not to logging


class Session:
    """One loaded graph.

    inputs: shape of one raw example
    dtype: type of raw examples
    objective: see `models.submodel.Objective`
    outputs: number of classes or values, or size of the vocabulary
    tokens: number of tokens that an example may contain, with that of a hidden token; 0 if it holds
        numbers
    metadata: run, round, submodel, ...
    providers: execution providers in use, the preferred first; may differ from those requested
    """

    def __init__(
        self,
        model: bytes,
        name: str,
        *,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
    ) -> None:
        """Load a graph.

        threads: 0 lets the runtime choose
        ExportError: not an ONNX graph, one with weights in other files or with operators that can
            name files, or not exported by this project.
        """
        refuse_external_files(name, model)
        refuse_foreign_operators(name, model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = QUIET
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # the runtime's errors share no base class of their own
            raise ExportError(f"{name}: {explain_load_error(error)}") from error
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
        self.inputs, self.dtype = self._read_input()
        self.outputs = self._read_output()
        self.tokens = self._count_tokens()

    def predict(self, x: Array) -> Output:
        """Return the outputs for raw examples [n, *inputs]: [n, outputs], for tokens [n,
        outputs, T]. DataError: the examples do not fit.
        """
        places = self.inputs if self.objective in TOKENS else ()
        return np.concatenate([np.zeros((0, self.outputs, *places), np.float32), *self.batches(x)])

    def batches(self, x: Array) -> Iterator[Output]:
        """Yield the outputs in batches, for inputs too large to hold at once."""
        self._check_fit(x)
        places = self.inputs[0] if self.objective in TOKENS else 1
        step = min(BATCH, max(1, MAX_VALUES // (self.outputs * places)))
        for start in range(0, len(x), step):
            yield self._session.run(None, {INPUT: x[start : start + step]})[0]

    def _check_fit(self, x: Array) -> None:
        if tuple(x.shape[1:]) != self.inputs or x.dtype != self.dtype or x.ndim == 0:
            raise DataError(
                f"{self.name}: expected {self.dtype} of shape [n, "
                f"{', '.join(map(str, self.inputs))}], found {x.dtype} {list(x.shape)}"
            )
        if self.tokens and x.size and not 0 <= x.min() <= x.max() < self.tokens:
            hidden = f", or {self.outputs} for a hidden one" if self.objective in TOKENS else ""
            last = self.tokens - 1 - bool(hidden)
            raise DataError(
                f"{self.name}: expected tokens 0 to {last}{hidden}, found {x.min()} to {x.max()}"
            )

    def _read_input(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        found, types = self._session.get_inputs(), _list_types(self.objective)
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
                f"found {_describe(found)}"
            )
        return tuple(found[0].shape[1:]), types[found[0].type]

    def _read_output(self) -> int:
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
                f"{['batch', 'outputs', *places]}, found {_describe(found)}"
            )
        return int(found[0].shape[1])

    def _count_tokens(self) -> int:
        if self.objective in TOKENS:
            return self.outputs + 1
        if self.dtype != np.int64:
            return 0
        written = self.metadata.get("vocabulary", "")
        if not written.isdecimal() or int(written) < 2:
            raise ExportError(
                f"{self.name}: expected the size of the vocabulary in its properties, since it "
                f"reads texts; found '{written[:20]}'"
            )
        return int(written)


def load(
    path: Path,
    digest: str | None = None,
    *,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    threads: int = 0,
) -> Session:
    """Read a graph, and check its digest (sha256, hexadecimal) if given.

    ExportError: the file is missing, has another digest, is corrupt, or is not a graph of this
        project.
    """
    if path.is_dir():
        graphs = sorted(path.glob("*.onnx"))
        remedy = f"choose one of its files, such as {graphs[0]}" if graphs else "choose a file"
        raise ExportError(f"{path}: expected an .onnx file, found a folder; {remedy}")
    if not path.is_file():
        raise ExportError(
            f"{path}: no such file; expected an .onnx file, as `coordinator export` writes it"
        )
    return Session(read_file(path, digest), str(path), providers=providers, threads=threads)


def read_file(path: Path, digest: str | None) -> bytes:
    """Read a file once, so that the checked bytes are the ones that are used, and check its digest
    (sha256, hexadecimal) if given. Raises ExportError.
    """
    with explain_os_errors(ExportError, str(path)):
        data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest.lower():
        raise ExportError(f"{path}: expected sha256 {digest}, found {found}")
    return data


def explain_load_error(error: Exception) -> str:
    """Return why a graph does not load: the required and the available version, or else the
    runtime's message without its source location.
    """
    text, version = " ".join(str(error).split()), f"onnxruntime {onnxruntime.__version__}"
    for pattern, words in REASONS.items():
        if found := re.search(pattern, text):
            return words.format(*found.groups(), version=version)
    return f"not a valid ONNX file: {re.sub(r'/onnxruntime_src/.*?[)] (?=[A-Z])', '', text)[:300]}"


def _list_types(objective: str) -> dict[str, np.dtype[Any]]:
    return {
        name: dtype
        for name, dtype in TYPES.items()
        if name == "tensor(int64)" or objective not in TOKENS
    }


def _describe(found: Sequence[Any]) -> str:
    return ", ".join(f"'{value.name}' {value.type} {value.shape}" for value in found) or "none"
