"""Every family exports to ONNX with PyTorch's outputs, weights and multiply-adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from export.graph_cost import count
from export.onnx_export import export, predict
from export.onnx_session import INPUT, Array, load
from models.cost import cost
from models.families.catalogue import FAMILIES
from models.layers.batch_norm import NORMS
from models.menu import menu
from models.submodel import Submodel
from models.submodel_building import build, full
from tests.models.test_every_family import batch
from tests.support.smallest_networks import small

# family -> numbers beside its parameters: mean and std of a channel, the scale of attention
WITHOUT_NORM = {"transformer": 1, "vit": 3}


@dataclass(frozen=True)
class Exported:
    """A network and its file. x: seven examples."""

    submodel: Submodel
    net: nn.Module
    x: Array
    path: Path


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Export a family at half the width with one block per section, where a forgotten axis shows
    first. All numbers are distinct: the exporter stores equal tensors once, and drops zero biases.
    """
    torch.manual_seed(0)
    submodel = menu(small(request.param), (0.5,), (1,))[0]
    net = build(submodel).eval()
    with torch.no_grad():
        for value in net.parameters():
            value.add_(torch.randn_like(value) * 0.02)
    x = batch(submodel.network, 7).numpy()
    file = tmp_path_factory.mktemp(request.param) / "net.onnx"
    origin = {"run": "r", "round": 1, "submodel": submodel.name}
    return Exported(submodel, net, x, export(net, submodel.network, x[:2], file, origin))


def test_onnx_parity_at_batches_1_and_7(exported: Exported) -> None:
    net, x, path = exported.net, exported.x, exported.path
    for n in (1, 7):
        wanted = predict(net, exported.submodel.network, x[:n])
        np.testing.assert_allclose(load(path).predict(x[:n]), wanted, atol=1e-4)
        np.testing.assert_allclose(run_in_openvino(path, x[:n]), wanted, atol=1e-4)
    reference = ReferenceEvaluator(str(path)).run(None, {INPUT: x})[0]
    np.testing.assert_allclose(reference, wanted, atol=1e-4)


def test_a_file_has_the_weights_and_multiply_adds_of_its_network(exported: Exported) -> None:
    submodel, found = exported.submodel, count(exported.path)
    assert found.macs == cost(submodel).macs
    layers = [
        module
        for module in exported.net.modules()
        if "weight" in module._parameters and not isinstance(module, NORMS)
    ]
    assert found.weights == sum(layer.weight.numel() for layer in layers)
    family = submodel.network.family
    if family in WITHOUT_NORM:
        assert found.parameters == cost(submodel).parameters + WITHOUT_NORM[family]


def run_in_openvino(path: Path, x: Array) -> Array:
    """Return OpenVINO's outputs. Without the hint it may compute with fewer bits than float32."""
    import openvino  # only here: every worker imports this file

    core = openvino.Core()
    model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.asarray(model([x])[0])


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["exits", "exits-adapter", "exits-conv"])
def test_a_network_with_exits_is_exported_with_only_the_deepest(feature, tmp_path):
    """A ResNet that ends before its last section has PyTorch's outputs; its shallow exit's
    tensors are not in the file.
    """
    torch.manual_seed(0)
    whole = full(small("resnet"), (feature,))
    submodel = replace(whole, mask=((1, 1), (1, 1), (0, 0)))
    net, x = build(submodel).eval(), batch(submodel.network, 7).numpy()
    path = export(
        net,
        submodel.network,
        x[:2],
        tmp_path / "net.onnx",
        {"run": "r", "round": 1, "submodel": submodel.name},
    )
    np.testing.assert_allclose(load(path).predict(x), predict(net, submodel.network, x), atol=1e-4)
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert "exits.1.linear.weight" in names
    assert not any(name.startswith("exits.0.") for name in names)
