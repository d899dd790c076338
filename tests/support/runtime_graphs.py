"""Graphs in ONNX Runtime's own format that are protobuf at the same time."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

__all__ = ["disguise"]

# as protobuf: the number 0, and a field of 8 bytes; as an offset: of the graph in the file
HEAD = 0x010070
OWN = 11  # bytes that these two fields take
UNUSED = ("", "Abs", "Exp", "Floor", "Sigmoid", "Sqrt")  # operators to add


def disguise(model: onnx.ModelProto, folder: Path) -> bytes:
    """Return a model in the runtime's format, moved in its file so that the file is protobuf with
    nothing but unknown fields.
    """
    for name in UNUSED:  # which ones there are decides on the offset
        data = convert(model, name, folder)
        offset = struct.unpack_from("<I", data)[0]
        if offset % 8 == 0:
            break
    else:
        raise AssertionError("no offset is the beginning of a protobuf field")
    head = HEAD + offset % 16  # alignments stay the same
    moved = bytearray(struct.pack("<I", head) + data[4:8] + bytes(head - offset) + data[8:])
    rest = len(moved) - OWN - 5  # a field with all other bytes, whose size takes four
    size = bytes([rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14 & 127 | 128, rest >> 21])
    moved[OWN : OWN + 5] = b"\x7a" + size
    return bytes(moved)


def convert(model: onnx.ModelProto, unused: str, folder: Path) -> bytes:
    """Return a model in the runtime's format, with an operator whose result nothing uses."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    if unused:
        value = numpy_helper.from_array(np.ones(1, np.float32))
        changed.graph.node.append(helper.make_node("Constant", [], ["unused"], value=value))
        changed.graph.node.append(helper.make_node(unused, ["unused"], ["unused_too"]))
    options, path = onnxruntime.SessionOptions(), folder / "graph.ort"
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(
        changed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return path.read_bytes()
