"""Graphs made by hand, so that what a device does is tested where there is no torch, no exporter
and no onnx.

`toy.onnx` and `picture.onnx` beside this file are what `make_bytes` makes; test_verify compares
them. To write them anew after a change here: `python -c "from tests.export.conftest import write;
write()"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

GIVEN = {
    "objective": "class",
    "outputs": "2",
    "preprocessing": "{}",
    "round": "7",
    "run": "spring",
    "submodel": "w1-d1",
    "versions": "{}",
    "weights": "00",
}
KEPT: dict[str, tuple[int, ...]] = {"toy.onnx": (2,), "picture.onnx": (1, 2, 2)}


def make_bytes(
    inputs: tuple[int, ...] = (2,),
    *,
    given: Mapping[str, str] = GIVEN,
    input: str = "input",
    output: str = "logits",
    dtype: str = "UINT8",
    batch: str | int = "batch",
) -> bytes:
    """An ONNX file: of raw data, flattened, the first number and minus the second."""
    onnx: Any = pytest.importorskip("onnx")
    helper, types, size = onnx.helper, onnx.TensorProto, 1
    for axis in inputs:
        size *= axis
    graph = helper.make_graph(
        [
            helper.make_node("Cast", [input], ["numbers"], to=types.FLOAT),
            helper.make_node("Flatten", ["numbers"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weight"], [output]),
        ],
        "toy",
        [helper.make_tensor_value_info(input, getattr(types, dtype), [batch, *inputs])],
        [helper.make_tensor_value_info(output, types.FLOAT, [batch, 2])],
        [
            helper.make_tensor(
                "weight", types.FLOAT, [size, 2], [1.0, 0.0, 0.0, -1.0] + [0.0] * (2 * size - 4)
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, given)
    return model.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def make_text(objective: str, length: int = 3) -> bytes:
    """An ONNX file of tokens 0, 1, 2: at each place, logit 2 for the token after its own (0 after
    2), and 1 for token 2 where it is hidden.
    """
    onnx: Any = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input"], ["places"]),
            helper.make_node("Transpose", ["places"], ["logits"], perm=[0, 2, 1]),
        ],
        "text",
        [helper.make_tensor_value_info("input", types.INT64, ["batch", length])],
        [helper.make_tensor_value_info("logits", types.FLOAT, ["batch", 3, length])],
        [
            helper.make_tensor(
                "table",
                types.FLOAT,
                [4, 3],
                [0.0, 2.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0],
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {**GIVEN, "objective": objective, "outputs": "3"})
    return model.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def write() -> None:
    for name, inputs in KEPT.items():
        (Path(__file__).parent / name).write_bytes(make_bytes(inputs))


@pytest.fixture
def made() -> Callable[..., bytes]:
    return make_bytes


@pytest.fixture
def make_graph(tmp_path: Path) -> Callable[..., Path]:
    """Puts toy.onnx into a temporary folder; keywords change its names, types and properties."""

    def make(**changes: Any) -> Path:
        path = tmp_path / "toy.onnx"
        path.write_bytes(
            make_bytes(**changes) if changes else (Path(__file__).parent / "toy.onnx").read_bytes()
        )
        return path

    return make
