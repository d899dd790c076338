"""List the operators of an ONNX graph, and find what it loads from other files: weights stored
outside the graph, and operators that name a file. Callers check these, or refuse the graph. Does
not import torch.

The digest of a graph does not cover such files, and ONNX Runtime reads them from the folder of the
graph, or from the working folder of the process if the graph is given as bytes. This module reads
just enough of the graph's protobuf encoding to find them: `onnx` is not installed on devices. No
operator of ONNX itself names a file. `EPContext` does: it holds what an execution provider such as
TensorRT compiled, or the path of its file.

ONNX Runtime also reads a format of its own, which it recognises by four bytes. A file can be such a
graph and harmless protobuf at once, so a file with these bytes is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from federated.errors import ExportError

__all__ = [
    "check_external_files",
    "list_external_files",
    "list_foreign_operators",
    "list_operators",
    "refuse_external_files",
    "refuse_foreign_operators",
]

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
OPERATOR, DOMAIN = 4, 7  # fields of a node
COMPILED = "EPContext"
STANDARD = (b"", b"ai.onnx")  # names of ONNX's own domain
VARINT, LONG, BYTES, SHORT = 0, 1, 2, 5  # types of fields on the wire
RUNTIME_FORMAT = b"ORTM"  # from the fifth byte on: a graph in ONNX Runtime's own format


def list_external_files(model: bytes) -> list[str]:
    """Return the names of the files that hold weights of a graph; an empty name if a tensor is
    external without one. ValueError: the bytes are no ONNX file.
    """
    tensors = _list_messages(model, "tensor")
    return list(dict.fromkeys(name for tensor in tensors for name in _read_tensor(tensor)))


def list_operators(model: bytes) -> list[tuple[str, str]]:
    """Return the domain and the name of each operator of a graph, ONNX's own domain as "".
    ValueError: the bytes are no ONNX file.
    """
    found = dict[tuple[str, str], None]()
    for node in _list_messages(model, "node"):
        texts: dict[int, list[bytes]] = {OPERATOR: [b""], DOMAIN: [b""]}
        for number, value in _read_fields(node):
            if number in texts and isinstance(value, memoryview):
                texts[number].append(bytes(value))
        # a parser may take any value of a repeated field
        for domain in texts[DOMAIN][1:] or texts[DOMAIN]:
            for name in texts[OPERATOR][1:] or texts[OPERATOR]:
                where = "" if domain in STANDARD else domain.decode(errors="replace")
                found[where, name.decode(errors="replace")] = None
    return list(found)


def list_foreign_operators(model: bytes) -> list[str]:
    """Return the operators of a graph that are not ONNX's own, as DOMAIN:NAME, and `EPContext` of
    any domain. ValueError: the bytes are no ONNX file.
    """
    return [
        f"{domain}:{name}" for domain, name in list_operators(model) if domain or name == COMPILED
    ]


def check_external_files(path: Path, model: bytes) -> None:
    """Check that weights outside a graph lie in the folder of the graph, and that nothing in it was
    compiled for an execution provider. ExportError: they do not, or the bytes are no ONNX graph.
    """
    folder = path.parent.resolve()
    for name in _list_files(str(path), model):
        if not name or not (folder / name).resolve().is_relative_to(folder):
            raise ExportError(
                f"{path}: expected weights in files of its own folder, found them in '{name}'"
            )
    for name in list_foreign_operators(model):
        if name.endswith(f":{COMPILED}"):
            raise ExportError(
                f"{path}: expected a graph that no execution provider compiled, found {name}: "
                "choose the graph that it was compiled from"
            )


def refuse_external_files(name: str, model: bytes) -> None:
    """Check that a graph holds all of its weights. ExportError: it does not."""
    if files := _list_files(name, model):
        raise ExportError(
            f"{name}: expected a graph with all weights inside, found some in {', '.join(files)}, "
            "which its digest does not cover: export it without external data"
        )


def refuse_foreign_operators(name: str, model: bytes) -> None:
    """Check that a valid graph has no operators but ONNX's own. ExportError: it has others."""
    if found := list_foreign_operators(model):
        raise ExportError(
            f"{name}: expected operators of ONNX alone, as `coordinator export` writes them, found "
            f"{', '.join(found)}"
        )


def _list_files(name: str, model: bytes) -> list[str]:
    try:
        return list_external_files(model)
    except ValueError as error:
        raise ExportError(f"{name}: not a valid ONNX file: {error}") from error


def _list_messages(model: bytes, wanted: str) -> Iterator[memoryview]:
    """Yield every message of a kind, wherever it is nested. ValueError: not protobuf, or what the
    runtime would read as another format.
    """
    if model[4:8] == RUNTIME_FORMAT:
        raise ValueError("it is a graph in ONNX Runtime's own format")
    waiting = [("model", memoryview(model))]
    while waiting:
        kind, data = waiting.pop()
        if kind == wanted:
            yield data
        known = MESSAGES.get(kind, {})
        waiting += [
            (known[number], value)
            for number, value in (_read_fields(data) if known else ())
            if number in known and isinstance(value, memoryview)
        ]


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
