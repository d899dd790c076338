"""Counts from an exported file agree with those by hand. tests/export/test_every_family.py compares
them with the network of each family.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from torch import nn  # noqa: E402

from export.graph_cost import Count, count  # noqa: E402
from export.onnx_export import export  # noqa: E402
from federated.errors import ExportError  # noqa: E402
from models.cost import cost  # noqa: E402
from models.layers.basic import Norm  # noqa: E402
from models.menu import menu  # noqa: E402
from models.submodel import Submodel  # noqa: E402
from models.submodel_building import build  # noqa: E402
from tests.models.test_every_family import batch  # noqa: E402
from tests.support.smallest_networks import small  # noqa: E402


def counted(submodel: Submodel, folder: Path) -> tuple[Count, nn.Module]:
    """Count a network with distinct numbers: the exporter stores equal tensors once, and drops
    zero biases.
    """
    torch.manual_seed(0)
    net = build(submodel)
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    origin = {"run": "r", "round": 1, "submodel": submodel.name}
    return count(
        export(
            net, submodel.network, batch(submodel.network, 2).numpy(), folder / "net.onnx", origin
        )
    ), net


def test_folded_batch_norm_leaves_one_number_per_channel(tmp_path: Path) -> None:
    """A norm keeps one bias per channel instead of weight and bias; the graph also has the mean and
    deviation of the inputs.
    """
    submodel = menu(small("resnet1d"), (0.5,), (1,))[0]
    found, net = counted(submodel, tmp_path)
    channels = sum(module.num_features for module in net.modules() if isinstance(module, Norm))
    assert found.parameters == cost(submodel).parameters - channels + 2


def save(
    path: Path, nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, list[int]]
) -> Path:
    helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT  # noqa: N806 (onnx's own spelling)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [
            helper.make_tensor(name, FLOAT, shape, np.zeros(math.prod(shape)))
            for name, shape in weights.items()
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    return path


@pytest.mark.parametrize(
    ("op", "attributes", "x", "w", "macs"),
    [
        ("Conv", {"group": 2, "pads": [1, 1, 1, 1]}, ["n", 4, 5, 5], [6, 2, 3, 3], 6 * 25 * 2 * 9),
        ("ConvTranspose", {"strides": [2, 2]}, ["n", 4, 5, 5], [4, 3, 2, 2], 4 * 25 * 3 * 4),
        ("Gemm", {"transB": 1}, ["n", 7], [5, 7], 7 * 5),
        ("MatMul", {}, ["n", 2, 3, 4], [4, 5], 2 * 3 * 4 * 5),
        ("Einsum", {"equation": "nhtd, hde -> nte"}, ["n", 2, 3, 4], [2, 4, 5], 2 * 3 * 4 * 5),
    ],
)
def test_products_are_counted_as_by_hand(
    tmp_path: Path, op: str, attributes: dict[str, Any], x: list[Any], w: list[int], macs: int
) -> None:
    node = onnx.helper.make_node(op, ["x", "w"], ["y"], **attributes)
    assert count(save(tmp_path / "one.onnx", [node], {"x": x}, {"w": w})) == Count(
        math.prod(w), math.prod(w), macs
    )


def test_uncountable_file_is_reported(tmp_path: Path) -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    with pytest.raises(
        ExportError, match=r"open\.onnx: expected known shapes throughout, found none for 'y'"
    ):
        count(save(tmp_path / "open.onnx", [node], {"x": ["n", "m", 4]}, {"w": [4, 5]}))
    (tmp_path / "no.onnx").write_bytes(b"GIF89a")
    with pytest.raises(ExportError, match=r"no\.onnx: cannot be counted"):
        count(tmp_path / "no.onnx")
