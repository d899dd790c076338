"""A graph made by hand, so that what a device does is tested where there is no torch and no exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GIVEN = {"classes": "2", "preprocessing": "{}", "round": "7", "run": "spring", "submodel": "w1-d1", "versions": "{}", "weights": "00"}


@pytest.fixture
def make_graph(tmp_path: Path) -> Callable[..., Path]:
    """Writes logits = float(image) @ [[1, 0], [0, -1]] as ONNX; keywords replace names, types and properties."""
    onnx = pytest.importorskip("onnx")

    def make(
        file: str = "toy.onnx",
        *,
        given: dict[str, str] = GIVEN,
        image: str = "image",
        logits: str = "logits",
        dtype: str = "UINT8",
        batch: str | int = "batch",
    ) -> Path:
        helper, types = onnx.helper, onnx.TensorProto
        graph = helper.make_graph(
            [helper.make_node("Cast", [image], ["x"], to=types.FLOAT), helper.make_node("MatMul", ["x", "w"], [logits])],
            "toy",
            [helper.make_tensor_value_info(image, getattr(types, dtype), [batch, 2])],
            [helper.make_tensor_value_info(logits, types.FLOAT, [batch, 2])],
            [helper.make_tensor("w", types.FLOAT, [2, 2], [1.0, 0.0, 0.0, -1.0])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        helper.set_model_props(model, given)
        path = tmp_path / file
        onnx.save(model, path)
        return path

    return make
