"""Handmade releases of run `spring`, without torch or an exporter: one graph per submodel, its
weights, and a check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from export import onnx_session, release_reader
from export.release_reader import Bundle, Entry, File, Variant
from federated.wire import tensors
from tests.export.conftest import GIVEN, make_bytes

GRAPH = Path(__file__).parents[1] / "export" / "toy.onnx"  # of run spring, round 7, submodel w1-d1
X = np.array([[3, 1], [0, 2]], np.uint8)


def toy(
    folder: Path,
    padding: bytes = b"",
    *,
    round: int = 7,
    submodels: Sequence[str] = ("w1-d1",),
    accuracy: float | None = None,
    untrained: Sequence[str] = (),
) -> Path:
    """Write a release. untrained: submodels that no update trained. padding: makes the graphs
    longer, and the version another, by an unknown protobuf field that readers skip.

    padding: makes the graphs longer, and the version another, by an unknown protobuf field that
    readers skip.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in submodels:
        given = {**GIVEN, "round": str(round), "submodel": name}
        graph = GRAPH.read_bytes() if given == GIVEN else make_bytes(given=given)
        (folder / f"{name}.onnx").write_bytes(graph + field(padding))
        (folder / f"{name}.tensors").write_bytes(
            tensors.encode({"submodel": name}, {"weight": np.eye(2, dtype=np.float32)})
        )
    seal(folder, round, submodels, accuracy, untrained)
    return folder


def seal(
    folder: Path,
    round: int,
    submodels: Sequence[str],
    accuracy: float | None = None,
    untrained: Sequence[str] = (),
) -> None:
    """Write the check and the manifest of the graphs in the folder."""
    said = {
        f"{name}.onnx": onnx_session.load(folder / f"{name}.onnx").predict(X) for name in submodels
    }
    (folder / release_reader.CHECK).write_bytes(tensors.encode({}, {"x": X, **said}))
    entries = [
        Entry(
            name,
            4,
            4,
            (Variant("fp32", file(folder / f"{name}.onnx"), 0.0, accuracy),),
            file(folder / f"{name}.tensors"),
            trained_updates=0 if name in untrained else None,
        )
        for name in submodels
    ]
    made = Bundle(
        "spring",
        round,
        (2,),
        "uint8",
        "class",
        2,
        2,
        tuple(entries),
        file(folder / release_reader.CHECK),
    )
    (folder / release_reader.MANIFEST).write_bytes(msgspec.json.encode(made))


def file(path: Path) -> File:
    data = path.read_bytes()
    return File(path.name, len(data), hashlib.sha256(data).hexdigest())


def field(padding: bytes) -> bytes:
    """Return field 1000 of protobuf, of type bytes."""
    length, varint = len(padding), b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    return b"\xc2\x3e" + varint + bytes([length]) + padding if padding else b""


class Clock:
    """A clock that advances by half a second at each reading, so that timeouts of five seconds take
    no time.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now
