"""Load any ONNX file for a benchmark, and draw inputs of its declared shapes and types. Does not
import torch.

Unlike `export.onnx_session`, this only requires that the runtime can run the file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from export.onnx_session import explain_load_error
from federated.errors import ExportError, MissingExtra, Unknown
from federated.onnx_graph_contents import check_external_files

__all__ = ["Graph", "check_runs", "count_graph", "draw_inputs", "find_provider"]

Array = npt.NDArray[Any]

FLOATS = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
BYTES = {"tensor(uint8)": "uint8", "tensor(int8)": "int8"}
INTEGERS = {
    f"tensor({name})": name
    for name in ("bool", "int16", "int32", "int64", "uint16", "uint32", "uint64")
}
# largest number of elements of one input: a larger declared shape is an error, or too large for a
# device
MAX_ELEMENTS = 2**28
FATAL_ONLY = 4  # silences the runtime's messages on stderr
# operators of graphs whose weights are not floats
QUANTIZED_OPERATORS = (b"DequantizeLinear", b"DynamicQuantizeLinear", b"QLinearConv")


class Graph:
    """A loaded ONNX file. `run` takes the inputs of `draw_inputs`."""

    def __init__(self, path: Path, provider: str, threads: int) -> None:
        """Load a file.

        provider: short name of the execution provider
        ExportError: the file is missing, does not load, or has weights outside its folder. Unknown:
            the provider is not available.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = FATAL_ONLY
        wanted = find_provider(provider)
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "no such file"
            raise ExportError(f"{path}: {problem}; expected an ONNX file")
        check_external_files(path, path.read_bytes())
        try:
            # loads by path, since weights may be in a separate file
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[wanted])
        except Exception as error:  # the runtime's errors share no base class of their own
            raise ExportError(f"{path}: {explain_load_error(error)}") from error
        if (found := self._session.get_providers()[0]) != wanted:
            raise ExportError(
                f"{path}: expected to run on {wanted}, but it falls back to {found}: the "
                "provider's libraries are missing or incompatible"
            )
        self.path = path

    def run(self, feed: dict[str, Array]) -> object:
        return self._session.run(None, feed)

    @property
    def declared(self) -> list[Any]:
        return list(self._session.get_inputs())


def draw_inputs(graph: Graph) -> dict[str, Array]:
    """Draw inputs of the declared shapes and types, with variable axes of length 1: normal
    floats, random bytes, and ones for other integers (ids, masks and lengths).

    ExportError: an input is not a numeric tensor.
    """
    rng, feed = np.random.default_rng(0), {}
    for value in graph.declared:
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in value.shape or ()]
        if math.prod(shape) > MAX_ELEMENTS:
            raise ExportError(
                f"{graph.path}: expected inputs of at most {MAX_ELEMENTS} numbers, found "
                f"'{value.name}' {shape}"
            )
        if value.type in FLOATS:
            feed[value.name] = rng.standard_normal(shape).astype(FLOATS[value.type])
        elif value.type in BYTES:
            bounds = np.iinfo(BYTES[value.type])
            feed[value.name] = rng.integers(bounds.min, bounds.max + 1, shape).astype(
                BYTES[value.type]
            )
        elif value.type in INTEGERS:
            feed[value.name] = np.ones(shape, INTEGERS[value.type])
        else:
            raise ExportError(
                f"{graph.path}: expected inputs that are tensors of numbers, found "
                f"'{value.name}' {value.type}"
            )
    return feed


def check_runs(path: Path, provider: str) -> None:
    """Load a file and run it once. ExportError: it cannot be measured. Unknown: the provider is
    not available.
    """
    graph = Graph(path, provider, 1)
    feed = draw_inputs(graph)
    try:
        graph.run(feed)
    except Exception as error:  # the runtime's errors share no base class of their own
        shapes = ", ".join(
            f"'{name}' {value.dtype} {list(value.shape)}" for name, value in feed.items()
        )
        raise ExportError(
            f"{path}: does not run on {shapes or 'no inputs'}: {_shorten(error)}"
        ) from error


def count_graph(path: Path) -> tuple[int | None, int | None]:
    """Return the parameters, and the multiply-adds of one example; None if unknown or if onnx is
    not installed.
    """
    from export.graph_cost import count

    try:
        found = count(path)
    except (ExportError, MissingExtra):
        return None, None
    data = path.read_bytes()
    quantized = any(name in data for name in QUANTIZED_OPERATORS)
    return None if quantized else found.parameters, found.macs


def find_provider(name: str) -> str:
    """Return ONNX Runtime's provider for a short name: cpu, cuda, tensorrt, ... Raises Unknown
    with the available ones.
    """
    available = {
        p.removesuffix("ExecutionProvider").lower(): p
        for p in onnxruntime.get_available_providers()
    }
    if name not in available:
        raise Unknown("provider", name, available)
    return str(available[name])


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
