"""Find the files in which an ONNX graph stores weights outside itself, to check or refuse them.
Does not import torch.

The digest of a graph does not cover such files, and ONNX Runtime reads them from the folder of the
graph, or from the working folder of the process if the graph is given as bytes. This module reads
just enough of the graph's protobuf encoding to find them: `onnx` is not installed on devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from federated.errors import ExportError

__all__ = ["check_external_files", "list_external_files", "refuse_external_files"]

# message of ONNX -> number of each field that holds messages with tensors -> its message
MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "function": {7: "node", 11: "attribute"},
    "attribute": {
        **{5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    },
    "sparse": {1: "tensor", 2: "tensor"},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14  # fields of a tensor
KEY, VALUE = 1, 2  # fields of an entry of a tensor's external data
VARINT, LONG, BYTES, SHORT = 0, 1, 2, 5  # types of fields on the wire


def list_external_files(model: bytes) -> list[str]:
    """Return the names of the files that hold weights of a graph; an empty name if a tensor is
    external without one. ValueError: the bytes are not protobuf.
    """
    found, waiting = dict[str, None](), [("model", memoryview(model))]
    while waiting:
        kind, data = waiting.pop()
        if kind == "tensor":
            found |= dict.fromkeys(_read_tensor(data))
            continue
        known = MESSAGES[kind]
        waiting += [
            (known[number], value)
            for number, value in _read_fields(data)
            if number in known and isinstance(value, memoryview)
        ]
    return list(found)


def check_external_files(path: Path, model: bytes) -> None:
    """Check that weights outside a graph lie in the folder of the graph. ExportError: one lies
    elsewhere, or the bytes are not an ONNX graph.
    """
    folder = path.parent.resolve()
    for name in _list_files(str(path), model):
        if not name or not (folder / name).resolve().is_relative_to(folder):
            raise ExportError(
                f"{path}: expected weights in files of its own folder, found them in '{name}'"
            )


def refuse_external_files(name: str, model: bytes) -> None:
    """Check that a graph holds all of its weights. ExportError: it does not."""
    if files := _list_files(name, model):
        raise ExportError(
            f"{name}: expected a graph with all weights inside, found some in {', '.join(files)}, "
            "which its digest does not cover: export it without external data"
        )


def _list_files(name: str, model: bytes) -> list[str]:
    try:
        return list_external_files(model)
    except ValueError as error:
        raise ExportError(f"{name}: not a valid ONNX file: {error}") from error


def _read_tensor(data: memoryview) -> Iterator[str]:
    """Yield the files of one tensor."""
    names, external = list[str](), False
    for number, value in _read_fields(data):
        if number == DATA_LOCATION:
            external = external or value != 0
        elif number == EXTERNAL_DATA and isinstance(value, memoryview):
            external = True
            entry = {
                key: bytes(text)
                for key, text in _read_fields(value)
                if isinstance(text, memoryview)
            }
            if entry.get(KEY) == b"location":
                names.append(entry.get(VALUE, b"").decode(errors="replace"))
    yield from names or ([""] if external else [])


def _read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field. ValueError: not protobuf."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = _read_varint(data, at)
        elif wire in (LONG, SHORT):
            size = 8 if wire == LONG else 4
        else:
            raise ValueError(f"a field of the unknown type {wire}")
        if at + size > len(data):
            raise ValueError("it is cut short")
        yield number, data[at : at + size]
        at += size


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it. ValueError: it is cut short."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it is cut short")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")
