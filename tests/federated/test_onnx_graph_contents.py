"""Weights outside a graph, and operators that can name files, are found wherever the graph may hold
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.bench.onnx_graph import Graph, check_runs
from export.onnx_session import load
from federated.errors import ExportError
from federated.onnx_graph_contents import list_external_files, list_foreign_operators

onnx: Any = pytest.importorskip("onnx")
TOY = Path(__file__).parents[1] / "export" / "toy.onnx"


def external(name: str = "w", where: str | None = "owned.bin") -> Any:
    tensor = onnx.TensorProto(name=name, data_type=1, dims=[2], data_location=1)
    if where is not None:
        tensor.external_data.add(key="location", value=where)
        tensor.external_data.add(key="length", value="8")
    return tensor


def graph(*nodes: Any, weights: Any = ()) -> Any:
    output = onnx.helper.make_tensor_value_info("y", 1, [2])
    return onnx.helper.make_graph(list(nodes), "g", [], [output], list(weights))


def model(made: Any, functions: Any = ()) -> Any:
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(made, opset_imports=opset, ir_version=10, functions=functions)


def constant(tensor: Any) -> Any:
    return onnx.helper.make_node("Constant", [], ["y"], value=tensor)


def sparse(tensor: Any) -> Any:
    inner = onnx.TensorProto(name="i", data_type=7, dims=[2], int64_data=[0, 1])
    return onnx.SparseTensorProto(values=tensor, indices=inner, dims=[2])


def training(tensor: Any) -> Any:
    made = model(graph())
    made.training_info.add(algorithm=graph(weights=[tensor]))
    return made


PLACES = {
    "initializer": lambda tensor: model(graph(weights=[tensor])),
    "constant": lambda tensor: model(graph(constant(tensor))),
    "list of tensors": lambda tensor: model(
        graph(onnx.helper.make_node("Odd", [], ["y"], several=[tensor, tensor]))
    ),
    "branch": lambda tensor: model(
        graph(
            onnx.helper.make_node(
                "If", ["c"], ["y"], then_branch=graph(constant(tensor)), else_branch=graph()
            )
        )
    ),
    "list of graphs": lambda tensor: model(
        graph(onnx.helper.make_node("Odd", [], ["y"], several=[graph(weights=[tensor])]))
    ),
    "sparse initializer": lambda tensor: model(
        onnx.GraphProto(name="g", sparse_initializer=[sparse(tensor)])
    ),
    "sparse constant": lambda tensor: model(
        graph(onnx.helper.make_node("Constant", [], ["y"], sparse_value=sparse(tensor)))
    ),
    "function": lambda tensor: model(
        graph(),
        [
            onnx.helper.make_function(
                "own", "F", [], ["y"], [constant(tensor)], [onnx.helper.make_opsetid("", 20)]
            )
        ],
    ),
    "training": training,
}


@pytest.mark.parametrize("place", PLACES)
def test_external_weights_are_found_in_every_place(place: str) -> None:
    inside = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    assert list_external_files(PLACES[place](inside).SerializeToString()) == []
    assert list_external_files(PLACES[place](external()).SerializeToString()) == ["owned.bin"]
    assert list_external_files(PLACES[place](external(where=None)).SerializeToString()) == [""]


def moved(folder: Path, where: str) -> Path:
    """An exported graph, with its largest initializer moved into another file."""
    made = onnx.load_from_string(TOY.read_bytes())
    weight = max(made.graph.initializer, key=lambda one: one.ByteSize())
    data = onnx.numpy_helper.to_array(weight).tobytes()
    (folder / "owned.bin").write_bytes(data)
    weight.CopyFrom(
        onnx.TensorProto(
            name=weight.name, data_type=weight.data_type, dims=weight.dims, data_location=1
        )
    )
    weight.external_data.add(key="location", value=where)
    weight.external_data.add(key="length", value=str(len(data)))
    (folder / "toy.onnx").write_bytes(made.SerializeToString())
    return folder / "toy.onnx"


@pytest.mark.parametrize("where", ["owned.bin", "./owned.bin", "/etc/hostname", "../owned.bin"])
def test_a_release_keeps_its_weights_inside_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where the runtime would look for them
    with pytest.raises(ExportError, match=r"toy\.onnx: expected a graph with all weights inside"):
        load(moved(tmp_path, where))


def test_a_benchmark_reads_only_weights_in_the_folder_of_its_graph(tmp_path: Path) -> None:
    """Its graphs need not be from a release."""
    check_runs(moved(tmp_path, "owned.bin"), "cpu")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link.bin").symlink_to(tmp_path / "owned.bin")
    for where in ("../owned.bin", str(tmp_path / "owned.bin"), "link.bin"):
        with pytest.raises(ExportError, match="expected weights in files of its own folder"):
            Graph(moved(tmp_path / "inner", where), "cpu", 1)


def compiled(domain: str) -> Any:
    """A node with the path of a file that an execution provider reads."""
    return onnx.helper.make_node(
        "EPContext", [], ["y"], domain=domain, embed_mode=0, ep_cache_context="/etc/hostname"
    )


NESTED = {
    "graph": lambda node: model(graph(node)),
    "branch": lambda node: model(
        graph(
            onnx.helper.make_node(
                "If", ["c"], ["y"], then_branch=graph(node), else_branch=graph(node)
            )
        )
    ),
    "function": lambda node: model(
        graph(),
        [
            onnx.helper.make_function(
                "", "Relu", [], ["y"], [node], [onnx.helper.make_opsetid("", 20)]
            )
        ],
    ),
}


@pytest.mark.parametrize("place", NESTED)
def test_operators_of_other_domains_are_found_in_every_place(place: str) -> None:
    def found(node: Any) -> list[str]:
        return list_foreign_operators(NESTED[place](node).SerializeToString())

    for domain in ("", "ai.onnx"):
        assert found(onnx.helper.make_node("Relu", ["x"], ["y"], domain=domain)) == []
    assert found(onnx.helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")) == [
        "com.microsoft:Gelu"
    ]
    assert found(compiled("com.microsoft")) == ["com.microsoft:EPContext"]
    assert found(compiled("")) == [":EPContext"]


def test_a_graph_that_an_execution_provider_compiled_is_refused(tmp_path: Path) -> None:
    """With TensorRT, it would read the file that it names."""
    made = onnx.load_from_string(TOY.read_bytes())
    made.graph.node.append(compiled("com.microsoft"))
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (tmp_path / "toy.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ExportError, match=r"expected operators of ONNX alone.*EPContext"):
        load(tmp_path / "toy.onnx")
    with pytest.raises(ExportError, match="expected a graph that no execution provider compiled"):
        Graph(tmp_path / "toy.onnx", "cpu", 1)


def test_a_release_has_no_operators_of_other_domains(tmp_path: Path) -> None:
    """ONNX Runtime knows this one. A benchmark may run it."""
    made = onnx.load_from_string(TOY.read_bytes())
    last = made.graph.node[-1]
    made.graph.node.append(
        onnx.helper.make_node("Gelu", ["inner"], [last.output[0]], domain="com.microsoft")
    )
    last.output[0] = "inner"
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (tmp_path / "toy.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ExportError, match=r"expected operators of .* found com\.microsoft:Gelu"):
        load(tmp_path / "toy.onnx")
    check_runs(tmp_path / "toy.onnx", "cpu")


def test_a_graph_in_the_runtimes_own_format_is_refused(tmp_path: Path) -> None:
    """It is protobuf, too, in which nothing is found."""
    from tests.support.runtime_graphs import disguise  # needs onnx

    (tmp_path / "toy.onnx").write_bytes(disguise(onnx.load(TOY), tmp_path))
    for check in (load, lambda path: Graph(path, "cpu", 1)):
        with pytest.raises(ExportError, match=r"toy\.onnx: .* in ONNX Runtime's own format"):
            check(tmp_path / "toy.onnx")


@pytest.mark.parametrize("data", [b"\xff" * 30, b"\x3a\xff\x01ab", b"\x0b\x00", b"\x3a"])
def test_bytes_that_are_no_graph_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.onnx").write_bytes(data)
    with pytest.raises(ExportError, match=r"odd\.onnx: not a valid ONNX file"):
        load(tmp_path / "odd.onnx")
