"""A handmade release of run `spring` with one submodel w1-d1 and several graphs, which compute the
same but have different descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from export import onnx_session, release_reader
from export.release_reader import Bundle, Entry, Kind, Variant
from federated.wire import tensors
from tests.support.handmade_releases import GRAPH, X, field, file

__all__ = ["NAME", "several"]

NAME = "w1-d1"


def several(
    folder: Path,
    kinds: Sequence[Kind] = ("fp32", "int8-u8s8"),
    *,
    off: Mapping[Kind, float] = {},
    accuracy: Mapping[Kind, float] = {},
    classes: tuple[str, ...] = (),
    padding: bytes = b"",
) -> Path:
    """Write the release. off: error of the check relative to the graph (the outputs' spread is
    1.87). padding: makes the version another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = {}
    for number, kind in enumerate(kinds):
        path = folder / f"{NAME}.{kind}.onnx"
        path.write_bytes(GRAPH.read_bytes() + field(bytes([number]) + padding))
        said[path.name] = onnx_session.load(path).predict(X) + np.float32(off.get(kind, 0.0))
    (folder / f"{NAME}.tensors").write_bytes(
        tensors.encode({"submodel": NAME}, {"weight": np.eye(2, dtype=np.float32)})
    )
    (folder / release_reader.CHECK).write_bytes(tensors.encode({}, {"x": X, **said}))
    variants = tuple(
        Variant(kind, file(folder / f"{NAME}.{kind}.onnx"), 0.0, accuracy.get(kind))
        for kind in kinds
    )
    entry = Entry(NAME, 4, 4, variants, file(folder / f"{NAME}.tensors"))
    made = Bundle(
        "spring",
        7,
        (2,),
        "uint8",
        "class",
        2,
        2,
        (entry,),
        file(folder / release_reader.CHECK),
        classes,
    )
    (folder / release_reader.MANIFEST).write_bytes(msgspec.json.encode(made))
    return folder
