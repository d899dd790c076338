"""Every family exports to ONNX with PyTorch's outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from export.onnx_export import export, predict
from export.onnx_session import INPUT, Array, load
from models.families.catalogue import FAMILIES
from models.menu import menu
from models.submodel_building import build, full
from tests.models.test_every_family import batch
from tests.support.smallest_networks import small


@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_parity_at_batches_1_and_7(family, tmp_path):
    """Half the width, one block per section: a forgotten axis shows here first."""
    torch.manual_seed(0)
    submodel = menu(small(family), (0.5,), (1,))[0]
    net = build(submodel).eval()
    x = batch(submodel.network, 7).numpy()
    path = export(
        net,
        submodel.network,
        x[:2],
        tmp_path / "net.onnx",
        {"run": "r", "round": 1, "submodel": submodel.name},
    )
    for n in (1, 7):
        wanted = predict(net, submodel.network, x[:n])
        np.testing.assert_allclose(load(path).predict(x[:n]), wanted, atol=1e-4)
        np.testing.assert_allclose(run_in_openvino(path, x[:n]), wanted, atol=1e-4)
    reference = ReferenceEvaluator(str(path)).run(None, {INPUT: x})[0]
    np.testing.assert_allclose(reference, wanted, atol=1e-4)


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
