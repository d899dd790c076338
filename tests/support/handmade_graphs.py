"""Training graphs of a network without code, `BARE`, made by hand: one weight `w` [1, 2], from
which each step subtracts the learning rate, and logits x w.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from federated.task import Graph
from tests.support.small_tasks import BARE

__all__ = ["INPUTS", "make_model", "make_node", "write_graph", "write_graphs"]

SLOTS = 5
INPUTS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "x": (TensorProto.FLOAT, (SLOTS, 1)),
    "y": (TensorProto.INT32, (SLOTS,)),
    "weights": (TensorProto.FLOAT, (SLOTS,)),
    "lr": (TensorProto.FLOAT, ()),
    "p.w": (TensorProto.FLOAT, (1, 2)),
}
make_node = helper.make_node
NODES = {
    "step": (
        make_node("Sub", ["p.w", "lr"], ["next.p.w"]),
        make_node("ReduceMean", ["weights"], ["loss"], keepdims=0),
    ),
    "evaluation": (make_node("MatMul", ["x", "p.w"], ["out.0"]),),
}
OUTPUTS = {"step": {"next.p.w": (1, 2), "loss": ()}, "evaluation": {"out.0": (SLOTS, 2)}}
NAMES = {"step": tuple(INPUTS), "evaluation": ("x", "p.w")}


def make_model(
    kind: str = "step",
    submodel: str = BARE.name,
    nodes: Sequence[Any] = (),
    inputs: Mapping[str, tuple[int, tuple[Any, ...]]] = INPUTS,
    domain: str = "",
) -> Any:
    """Return a graph of a kind. nodes: in addition to those that it needs. domain: of another set
    of operators.
    """
    graph = helper.make_graph(
        [*NODES[kind], *nodes],
        "g",
        [
            helper.make_tensor_value_info(name, *inputs[name])
            for name in NAMES[kind]
            if name in inputs
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in OUTPUTS[kind].items()
        ],
    )
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    properties = {"kind": kind, "submodel": submodel, "batch": str(SLOTS), "draws": "[]"}
    helper.set_model_props(model, properties)
    return model


def write_graph(folder: Path, model: onnx.ModelProto, kind: str = "step") -> Graph:
    """Write a graph as a device keeps it, and return what a task says about it."""
    data = model.SerializeToString()
    digest = sha256(data).hexdigest()
    (folder / f"{digest}.graph").write_bytes(data)
    return Graph(kind, digest, len(data))  # type: ignore[arg-type]


def write_graphs(folder: Path) -> tuple[Graph, ...]:
    """Write a graph of each kind that `BARE` has."""
    return tuple(write_graph(folder, make_model(kind), kind) for kind in NODES)
