"""Any ONNX file is measured, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.bench.onnx_graph import Graph, check_runs, count_graph, draw_inputs, find_provider
from federated.errors import ExportError, Unknown

KEPT = Path(__file__).parents[2] / "export"


def make_graph(
    path: Path,
    inputs: dict[str, tuple[str, list[str | int]]],
    *nodes: tuple[Any, ...],
    opset: int = 20,
) -> Path:
    """Return an ONNX file of nodes (operator, inputs, outputs, domain); the last output is the
    graph's, float32.
    """
    onnx: Any = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node(name, taken, given, domain=domain)
            for name, taken, given, domain in nodes
        ],
        "foreign",
        [
            helper.make_tensor_value_info(name, getattr(types, dtype), shape)
            for name, (dtype, shape) in inputs.items()
        ],
        [helper.make_tensor_value_info(nodes[-1][2][0], types.FLOAT, None)],
    )
    domains = {node[3] for node in nodes} | {""}
    opsets = [helper.make_opsetid(domain, opset if not domain else 1) for domain in sorted(domains)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )
    return path


def test_inputs_match_declarations_with_variable_axes_of_one(tmp_path: Path) -> None:
    inputs: dict[str, tuple[str, list[str | int]]] = {
        "a": ("FLOAT", ["batch", 3]),
        "b": ("INT64", ["batch", "time"]),
        "c": ("UINT8", [2, 2]),
    }
    path = make_graph(tmp_path / "f.onnx", inputs, ("Identity", ["a"], ["y"], ""))
    feed = draw_inputs(Graph(path, "cpu", 1))
    assert {name: (value.dtype.name, value.shape) for name, value in feed.items()} == {
        "a": ("float32", (1, 3)),
        "b": ("int64", (1, 1)),
        "c": ("uint8", (2, 2)),
    }
    assert feed["b"].tolist() == [[1]]
    check_runs(path, "cpu")


def test_a_graph_without_inputs_runs(tmp_path: Path) -> None:
    onnx: Any = pytest.importorskip("onnx")
    value = onnx.numpy_helper.from_array(np.ones(2, np.float32))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Constant", [], ["y"], value=value)],
        "constant",
        [],
        [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )
    path = tmp_path / "c.onnx"
    path.write_bytes(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
        ).SerializeToString()
    )
    check_runs(path, "cpu")


def test_missing_or_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nix\.onnx: no such file"):
        check_runs(tmp_path / "nix.onnx", "cpu")
    with pytest.raises(ExportError, match="is a folder"):
        check_runs(tmp_path, "cpu")
    cut = tmp_path / "cut.onnx"
    cut.write_bytes((KEPT / "image.onnx").read_bytes()[:100])
    with pytest.raises(ExportError, match=r"cut\.onnx: not a valid ONNX file"):
        check_runs(cut, "cpu")


def test_unsupported_operator_or_opset_is_named(tmp_path: Path) -> None:
    foreign = make_graph(
        tmp_path / "own.onnx", {"a": ("FLOAT", [1])}, ("Wiggle", ["a"], ["y"], "com.example")
    )
    with pytest.raises(ExportError, match=r"own\.onnx: .*Wiggle"):
        check_runs(foreign, "cpu")
    late = make_graph(
        tmp_path / "late.onnx", {"a": ("FLOAT", [1])}, ("Relu", ["a"], ["y"], ""), opset=99
    )
    with pytest.raises(ExportError, match=r"late\.onnx: .*opset"):
        check_runs(late, "cpu")


def test_unsupported_inputs_are_named(tmp_path: Path) -> None:
    words = make_graph(
        tmp_path / "words.onnx",
        {"w": ("STRING", [1]), "a": ("FLOAT", [1])},
        ("Relu", ["a"], ["y"], ""),
    )
    with pytest.raises(ExportError, match=r"words\.onnx: .*'w' tensor\(string\)"):
        check_runs(words, "cpu")
    large = make_graph(
        tmp_path / "large.onnx", {"a": ("FLOAT", [2**20, 2**20])}, ("Relu", ["a"], ["y"], "")
    )
    with pytest.raises(ExportError, match=r"large\.onnx: expected inputs of at most"):
        check_runs(large, "cpu")


def test_failing_graph_names_its_inputs(tmp_path: Path) -> None:
    odd = make_graph(
        tmp_path / "odd.onnx",
        {"a": ("FLOAT", ["n", 3]), "b": ("FLOAT", ["m", 3])},
        ("MatMul", ["a", "b"], ["y"], ""),
    )
    with pytest.raises(
        ExportError, match=r"odd\.onnx: does not run on 'a' float32 \[1, 3\], 'b' float32 \[1, 3\]"
    ):
        check_runs(odd, "cpu")


def test_unknown_provider_lists_available_ones() -> None:
    assert find_provider("cpu") == "CPUExecutionProvider"
    with pytest.raises(Unknown, match=r"unknown provider 'abacus'; known: .*cpu"):
        find_provider("abacus")


def test_parameters_and_macs_are_counted_if_known(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    assert count_graph(KEPT / "image.onnx") == (8, 8)  # a matrix of [4, 2]
    assert count_graph(
        make_graph(
            tmp_path / "odd.onnx",
            {"a": ("FLOAT", ["n", "k"]), "b": ("FLOAT", ["k", 3])},
            ("MatMul", ["a", "b"], ["y"], ""),
        )
    ) == (
        None,
        None,
    )
