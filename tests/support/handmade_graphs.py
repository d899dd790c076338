"""Training graphs made by hand. Each step subtracts the learning rate from every parameter; logits
are the sum of the first parameter, and statistics are 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from federated.task import Graph
from models.submodel import Submodel
from models.submodel_building import shapes, statistics
from tests.support.small_tasks import BARE

__all__ = ["INPUTS", "Design", "make_model", "make_node", "write_graph", "write_graphs"]

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32
make_node = helper.make_node
Infos = Mapping[str, tuple[int, tuple[Any, ...]]]


@dataclass(frozen=True)
class Design:
    """What a graph is made of.

    submodel: its name.
    inputs: of a step: type and shape by name.
    outputs: number of logits.
    averages: shapes of running statistics.
    """

    submodel: str
    inputs: Infos
    outputs: int
    averages: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, submodel: Submodel, batch: int) -> Design:
        """Return the design for a built-in network and a recipe's batch."""
        slots, parameters = batch + 1, shapes(submodel)
        inputs = {
            "x": (FLOAT, (slots, *submodel.network.inputs)),
            "y": (INT, (slots,)),
            "weights": (FLOAT, (slots,)),
            "lr": (FLOAT, ()),
            **{f"p.{name}": (FLOAT, shape) for name, shape in parameters.items()},
        }
        return cls(submodel.name, inputs, submodel.network.outputs, statistics(submodel))

    def write(self, folder: Path, *odd: Any) -> None:
        """Write the graphs as a coordinator keeps them. odd: nodes in addition to a step's own."""
        folder.mkdir(parents=True)
        kinds = ("step", "evaluation", *(["calibration"] if self.averages else []))
        for kind in kinds:
            nodes = odd if kind == "step" else ()
            data = make_model(kind, nodes=nodes, design=self).SerializeToString()
            (folder / f"{kind}-{sha256(data).hexdigest()}.onnx").write_bytes(data)


# of a network without code: one weight [1, 2]
INPUTS: Infos = {
    "x": (FLOAT, (5, 1)),
    "y": (INT, (5,)),
    "weights": (FLOAT, (5,)),
    "lr": (FLOAT, ()),
    "p.w": (FLOAT, (1, 2)),
}
OWN = Design(BARE.name, INPUTS, 2, {})


def make_model(
    kind: str = "step",
    submodel: str = "",
    nodes: Sequence[Any] = (),
    inputs: Infos | None = None,
    domain: str = "",
    design: Design = OWN,
) -> Any:
    """Return a graph of a kind. submodel, inputs: instead of the design's. nodes: in addition
    to those that it needs. domain: of another set of operators.
    """
    given = inputs if inputs is not None else design.inputs
    makers = {"step": make_step, "evaluation": make_evaluation, "calibration": make_calibration}
    own, outputs = makers[kind](design, given)
    averages = {f"b.{name}": (FLOAT, shape) for name, shape in design.averages.items()}
    parameters = {name: one for name, one in given.items() if name.startswith("p.")}
    known: Mapping[str, Infos] = {
        "step": given,
        "evaluation": {"x": given["x"], **parameters, **averages},
        "calibration": {"x": given["x"], "weights": given["weights"], **parameters},
    }
    graph = helper.make_graph(
        [*own, *nodes],
        "g",
        [helper.make_tensor_value_info(name, *one) for name, one in known[kind].items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    properties = {"kind": kind, "submodel": submodel or design.submodel, "draws": "[]"}
    helper.set_model_props(model, properties)
    return model


Parts = tuple[list[Any], dict[str, tuple[Any, ...]]]


def make_step(design: Design, inputs: Infos) -> Parts:
    parameters = {name: shape for name, (_, shape) in design.inputs.items() if name[:2] == "p."}
    moves = [make_node("Sub", [name, "lr"], [f"next.{name}"]) for name in parameters]
    loss = make_node("ReduceMean", ["weights"], ["loss"], keepdims=0)
    moved: dict[str, tuple[Any, ...]] = {f"next.{name}": s for name, s in parameters.items()}
    return [*moves, loss], {**moved, "loss": ()}


def make_evaluation(design: Design, inputs: Infos) -> Parts:
    """Return logits that grow with the class, beside the sum of the first parameter."""
    slots = inputs["x"][1][0]
    ramp = np.tile(np.arange(design.outputs, dtype=np.float32), (slots, 1))
    first = next(name for name in inputs if name.startswith("p."))
    nodes = [
        make_node("Constant", [], ["ramp"], value=numpy_helper.from_array(ramp)),
        make_node("ReduceSum", [first], ["sum"], keepdims=0),
        make_node("Add", ["ramp", "sum"], ["out.0"]),
    ]
    return nodes, {"out.0": ramp.shape}


def make_calibration(design: Design, inputs: Infos) -> Parts:
    nodes = [
        make_node(
            "Constant",
            [],
            [f"b.{name}"],
            value=numpy_helper.from_array(np.ones(shape, np.float32)),
        )
        for name, shape in design.averages.items()
    ]
    return nodes, {f"b.{name}": shape for name, shape in design.averages.items()}


def write_graph(folder: Path, model: onnx.ModelProto, kind: str = "step") -> Graph:
    """Write a graph as a device keeps it, and return what a task says about it."""
    data = model.SerializeToString()
    digest = sha256(data).hexdigest()
    (folder / f"{digest}.graph").write_bytes(data)
    return Graph(kind, digest, len(data))  # type: ignore[arg-type]


def write_graphs(folder: Path) -> tuple[Graph, ...]:
    """Write a graph of each kind that `BARE` has."""
    return tuple(write_graph(folder, make_model(kind), kind) for kind in ("step", "evaluation"))
