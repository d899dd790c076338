"""A device runs no graph that it did not check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from federated.device.trainers import graph_checks
from federated.device.trainers.graph_checks import OPERATORS, load_graph, refuse_contents
from federated.errors import Refused
from tests.support.handmade_graphs import INPUTS, make_model, make_node, write_graph
from tests.support.runtime_graphs import disguise
from tests.support.small_tasks import BARE


def load(folder: Path, model: onnx.ModelProto, kind: str = "step"):
    graph = write_graph(folder, model, kind)
    return load_graph(folder / f"{graph.digest}.graph", kind, BARE.name, 1)


def make_external() -> onnx.ModelProto:
    tensor = TensorProto(name="c", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value="/etc/passwd")
    return make_model(nodes=[make_node("Constant", [], ["c"], value=tensor)])


def make_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ())],
    )
    yes = numpy_helper.from_array(np.array(True))
    return make_model(
        nodes=[
            make_node("Constant", [], ["yes"], value=yes),
            make_node("Loop", ["", "yes"], [], body=body),
        ]
    )


def without(*names: str) -> onnx.ModelProto:
    return make_model(inputs={name: one for name, one in INPUTS.items() if name not in names})


def lossless() -> onnx.ModelProto:
    model = make_model()
    del model.graph.output[1:]
    return model


WRONG = {
    "another kind": (lambda: make_model("evaluation"), "kind 'step', found 'evaluation'"),
    "another submodel": (
        lambda: make_model(submodel="w0.5"),
        f"submodel '{BARE.name}', found 'w0.5'",
    ),
    "weights in a file": (make_external, "expected all numbers inside, found some in /etc/passwd"),
    "an endless loop": (make_loop, "does not run the operators Loop"),
    "random numbers": (
        lambda: make_model(nodes=[make_node("RandomNormal", [], ["r"], shape=[1])]),
        "does not run the operators RandomNormal",
    ),
    "a foreign operator": (
        lambda: make_model(
            nodes=[make_node("FusedMatMul", ["p.w", "p.w"], ["f"], domain="com.microsoft")],
            domain="com.microsoft",
        ),
        "does not run the operators com.microsoft:FusedMatMul",
    ),
    "a compiled node": (
        lambda: make_model(nodes=[make_node("EPContext", [], ["r"])]),
        "does not run the operators EPContext",
    ),
    "no labels": (lambda: without("y"), "expected the inputs y, found none"),
    "no loss": (lossless, "expected a loss"),
    "examples without batches": (
        lambda: make_model(inputs={**INPUTS, "x": (TensorProto.FLOAT, ())}),
        "expected batches of examples as x",
    ),
    "batches of any size": (
        lambda: make_model(inputs={**INPUTS, "y": (TensorProto.INT32, ("N",))}),
        "fixed shapes, found y",
    ),
    "numbers of another type": (
        lambda: make_model(inputs={**INPUTS, "y": (TensorProto.INT64, (5,))}),
        r"float32 or int32 with fixed shapes, found y of tensor\(int64\)",
    ),
    "shapes that do not fit": (
        lambda: make_model(nodes=[make_node("MatMul", ["x", "x"], ["r"])]),
        "MatMul",
    ),
    "an operator that this runtime lacks": (
        lambda: make_model(
            nodes=[
                make_node("Cast", ["y"], ["whole"], to=TensorProto.INT64),
                make_node("Relu", ["whole"], ["r"]),
            ]
        ),
        "Could not find an implementation for Relu",
    ),
    "a missing input": (
        lambda: make_model(nodes=[make_node("Neg", ["nothing"], ["r"])]),
        "nothing",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_graph_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    make, words = WRONG[case]
    with pytest.raises(Refused, match=words):
        load(tmp_path, make())


def test_a_right_graph_is_loaded(tmp_path: Path) -> None:
    assert load(tmp_path, make_model()).outputs == ["next.p.w", "loss"]
    assert load(tmp_path, make_model("evaluation"), "evaluation").outputs == ["out.0"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, make_model())
    path = tmp_path / f"{graph.digest}.graph"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Refused, match="its file is damaged"):
        load_graph(path, "step", BARE.name, 1)


def test_bytes_that_are_no_graph_are_refused(tmp_path: Path) -> None:
    class Junk:
        def SerializeToString(self) -> bytes:  # noqa: N802 (as protobuf names it)
            return b"\x0f" * 100

    with pytest.raises(Refused, match="not a valid ONNX file"):
        load(tmp_path, Junk())


def test_a_graph_in_the_runtimes_own_format_is_refused(tmp_path: Path) -> None:
    """As protobuf, it has no operators. The runtime would draw random numbers."""
    data = disguise(make_model(nodes=[make_node("RandomNormal", [], ["r"], shape=[1])]), tmp_path)
    onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with pytest.raises(Refused, match="it is a graph in ONNX Runtime's own format"):
        refuse_contents("a graph", data)


def test_a_file_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_checks, "MAX_GRAPH", 100)
    with pytest.raises(Refused, match="at most 100 bytes"):
        load(tmp_path, make_model())


def test_no_operator_of_the_list_has_a_subgraph_or_draws() -> None:
    odd = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.name not in OPERATORS:
            continue
        kinds = {one.type.name for one in schema.attributes.values()}
        if kinds & {"GRAPH", "GRAPHS"} or "seed" in schema.attributes:
            odd.add(schema.name)
    assert not odd
    known = {one.name for one in onnx.defs.get_all_schemas() if not one.domain}
    assert known >= OPERATORS
