"""Any ONNX file as a benchmark takes it: opened with a provider, its inputs drawn as it declares
them. No torch here.

Unlike `export.verify`, this asks nothing of a file but that the runtime can run it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from export.verify import reason
from federated.errors import ExportError, MissingExtra, Unknown

__all__ = ["Graph", "check", "counted", "drawn", "provider_named"]

Array = npt.NDArray[Any]

FLOATS = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
BYTES = {"tensor(uint8)": "uint8", "tensor(int8)": "int8"}
WHOLE = {
    f"tensor({name})": name
    for name in ("bool", "int16", "int32", "int64", "uint16", "uint32", "uint64")
}
# numbers of one input: a declared shape beyond that is an error, or nothing for a device
LARGEST = 2**28
SILENT = 4  # the runtime's own messages go to stderr, past any table
# operators of graphs whose weights are no floats
INTEGER = (b"DequantizeLinear", b"DynamicQuantizeLinear", b"QLinearConv")


class Graph:
    """An ONNX file, loaded. `run` takes what `drawn` gives."""

    def __init__(self, path: Path, provider: str, threads: int) -> None:
        """provider: its short name. Raises ExportError for what is missing or does not load,
        Unknown for a provider that is not here.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = SILENT
        wanted = provider_named(provider)
        if not path.is_file():
            raise ExportError(
                f"{path}: expected an ONNX file, found {'a folder' if path.is_dir() else 'nothing'}"
            )
        try:
            # by path: weights may lie beside it
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[wanted])
        except Exception as error:  # the runtime's errors share no base class of their own
            raise ExportError(f"{path}: {reason(error)}") from error
        if (found := self._session.get_providers()[0]) != wanted:
            raise ExportError(
                f"{path}: expected to run on {wanted}, found that it falls back to "
                f"{found}: the provider's libraries are missing or unfit"
            )
        self.path = path

    def run(self, feed: dict[str, Array]) -> object:
        return self._session.run(None, feed)

    @property
    def declared(self) -> list[Any]:
        return list(self._session.get_inputs())


def drawn(graph: Graph) -> dict[str, Array]:
    """Inputs of the declared shapes and types, open axes 1: normal floats, any byte, and ones of
    other whole numbers (ids, masks and lengths alike).

    Raises ExportError for an input that is no tensor of numbers.
    """
    rng, feed = np.random.default_rng(0), {}
    for value in graph.declared:
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in value.shape or ()]
        if math.prod(shape) > LARGEST:
            raise ExportError(
                f"{graph.path}: expected inputs of at most {LARGEST} numbers, found "
                f"'{value.name}' {shape}"
            )
        if value.type in FLOATS:
            feed[value.name] = rng.standard_normal(shape).astype(FLOATS[value.type])
        elif value.type in BYTES:
            bounds = np.iinfo(BYTES[value.type])
            feed[value.name] = rng.integers(bounds.min, bounds.max + 1, shape).astype(
                BYTES[value.type]
            )
        elif value.type in WHOLE:
            feed[value.name] = np.ones(shape, WHOLE[value.type])
        else:
            raise ExportError(
                f"{graph.path}: expected inputs that are tensors of numbers, found "
                f"'{value.name}' {value.type}"
            )
    return feed


def check(path: Path, provider: str) -> None:
    """Loads a file and runs it once. Raises ExportError for one that cannot be measured, Unknown
    for a provider that is not here.
    """
    graph = Graph(path, provider, 1)
    feed = drawn(graph)
    try:
        graph.run(feed)
    except Exception as error:  # as above
        shapes = ", ".join(
            f"'{name}' {value.dtype} {list(value.shape)}" for name, value in feed.items()
        )
        raise ExportError(
            f"{path}: does not run on {shapes or 'no inputs'}: {_said(error)}"
        ) from error


def counted(path: Path) -> tuple[int | None, int | None]:
    """Parameters, and multiply-adds of one example; None where a file does not tell them, or the
    package that counts is not installed.
    """
    from export.macs import count

    try:
        found = count(path)
    except (ExportError, MissingExtra):
        return None, None
    data = path.read_bytes()
    return None if any(name in data for name in INTEGER) else found.parameters, found.macs


def provider_named(name: str) -> str:
    """A provider of ONNX Runtime by its short name: cpu, cuda, tensorrt, ... Raises Unknown with
    those that are here.
    """
    here = {
        p.removesuffix("ExecutionProvider").lower(): p
        for p in onnxruntime.get_available_providers()
    }
    if name not in here:
        raise Unknown("provider", name, here)
    return str(here[name])


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
