"""Exporting modules that a program cut out of a network and trained itself."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import espalier
from federated.errors import DataError, ExportError, UsageError
from tests.espalier.conftest import Data


@pytest.fixture
def net() -> espalier.Network:
    """Return a network with batch norm that takes 4 numbers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return espalier.network(module, inputs=(4,))


def cut_and_calibrate(net: espalier.Network, submodel: espalier.Submodel, data: Data) -> nn.Module:
    module = espalier.slice(net, submodel)
    with torch.no_grad():
        module.train()(torch.from_numpy(data[0]))
    return module


def test_slices_are_exported_without_a_run(
    net: espalier.Network, data: Data, tmp_path: Path
) -> None:
    half, whole = espalier.menu(net, (0.5, 1.0))
    modules = {one: cut_and_calibrate(net, one, data) for one in (half, whole)}
    given = {half: modules[half], whole: modules[whole].state_dict()}
    made = espalier.export(net, tmp_path, given, inputs=data, int8=False)
    assert [entry.submodel for entry in made.submodels] == ["w0.5", "w1"]
    assert made.labelled
    x = data[0][:7]
    for submodel, module in modules.items():
        with torch.no_grad():
            expected = module.eval()(torch.from_numpy(x)).numpy()
        assert np.allclose(
            espalier.predict(tmp_path / f"{submodel.name}.onnx", x), expected, atol=1e-5
        )
    card = (tmp_path / "MODEL.md").read_text()
    assert card.startswith("# Sequential\n")
    assert "without a run" in card
    assert not re.search("federated|device", card.split("## Measurements")[0])
    assert "run" not in onnx.load(tmp_path / "w0.5.onnx").graph.doc_string


def test_a_module_without_batch_norm_statistics_is_not_exported(
    net: espalier.Network, data: Data, tmp_path: Path
) -> None:
    (half,) = espalier.menu(net, (0.5,))
    module = espalier.slice(net, half)
    with pytest.raises(ExportError, match=r"w0\.5: layer 'net\.1' .*training mode"):
        espalier.export(net, tmp_path / "out", {half: module}, inputs=data)
    tensors = cut_and_calibrate(net, half, data).state_dict()
    tensors = {name: value for name, value in tensors.items() if "running" not in name}
    with pytest.raises(ExportError, match=r"w0\.5: layer 'net\.1'"):
        espalier.export(net, tmp_path / "out", {half: tensors}, inputs=data)
    assert not (tmp_path / "out").exists()


def test_examples_and_tensors_must_fit_the_network(
    net: espalier.Network, data: Data, tmp_path: Path
) -> None:
    half, whole = espalier.menu(net, (0.5, 1.0))
    module = cut_and_calibrate(net, half, data)
    with pytest.raises(UsageError, match=r"inputs=\(x, y\)"):
        espalier.export(net, tmp_path, {half: module})
    odd = (np.zeros((9, 5), np.float32), np.arange(9) % 3)
    with pytest.raises(DataError, match=r"expected examples x of shape \[n, 4\], found \[9, 5\]"):
        espalier.export(net, tmp_path, {half: module}, inputs=odd)
    with pytest.raises(DataError, match=r"w1: expected tensor .* of shape"):
        espalier.export(net, tmp_path, {whole: module}, inputs=data)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("timm"), reason="needs the extra networks")
def test_a_slice_of_a_timm_network_is_exported(tmp_path: Path) -> None:
    net = espalier.network("timm:resnet10t", inputs=(3, 32, 32), outputs=5)
    (small,) = espalier.menu(net, widths=(0.25,), depths=(1,))
    module = espalier.slice(net, small)
    x = np.random.default_rng(0).normal(size=(40, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        module.train()(torch.from_numpy(x))
        expected = module.eval()(torch.from_numpy(x)).numpy()
    inputs = (x, np.arange(40) % 5)
    made = espalier.export(net, tmp_path, {small: module}, inputs=inputs, int8=False)
    file = tmp_path / made.submodels[0].variants[0].file.name
    assert np.allclose(espalier.predict(file, x), expected, atol=1e-4)
