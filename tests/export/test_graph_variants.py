"""A submodel's graphs are measured on examples not used for calibration, and broken ones are
left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from export import graph_variants
from export import quantize as quantize_module
from export.graph_variants import Examples, split, write_graphs
from federated.errors import ExportError
from federated.training.objective import prepare_batch
from models.named_network import network
from models.submodel import Moments, Submodel
from models.submodel_building import build, full
from tests.models.test_every_family import batch
from tests.support.int8 import exact_int8
from tests.support.smallest_networks import small

ORIGIN = {"run": "r", "round": 1}


def drawn(submodel: Submodel) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(submodel).eval()


@pytest.mark.parametrize(("n", "calibrated"), [(1000, 128), (256, 128), (9, 4), (2, 1)])
def test_calibration_uses_at_most_half_of_the_examples(n: int, calibrated: int) -> None:
    found = split(np.arange(n)[:, None], np.arange(n))
    assert found.calibration[:, 0].tolist() == list(range(calibrated))
    assert found.x[:, 0].tolist() == list(range(calibrated, n))
    assert found.truth is not None
    assert found.truth.tolist() == found.x[:, 0].tolist()


@pytest.mark.slow
@exact_int8
def test_values_are_scored_by_r2_in_raw_units(tmp_path: Path) -> None:
    """R2 is 1 if the labels are the network's outputs; at twice the distance from the mean it
    is 1 - 1/4 of the variance.
    """
    submodel = full(
        network("mlp", (6,), 2, Moments(shift=(100.0, -7.0), scale=(50.0, 0.001)), target="value")
    )
    net, x = drawn(submodel), np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    said = graph_variants.onnx_export.predict(net, submodel.network, x)
    for truth, wanted in ((said, 1.0), (2 * said - said.mean(0), 0.75)):
        graphs, absent = write_graphs(
            tmp_path,
            submodel,
            net,
            {**ORIGIN, "submodel": "w1"},
            Examples(x, truth, x[:8]),
            int8=True,
        )
        assert graphs[0].accuracy == pytest.approx(wanted, abs=1e-3)
        assert [graph.agreement for graph in graphs] == [pytest.approx(1.0, abs=0.02)] * 3
        assert absent == ()


@pytest.mark.slow
def test_texts_are_scored_by_token_and_may_be_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submodel = full(small("transformer"))
    net, raw = drawn(submodel), batch(submodel.network, 12)
    shown, truth = prepare_batch(submodel.network, 0.3, raw, raw, torch.Generator().manual_seed(0))
    x, y = shown.numpy(), truth.numpy()
    # five texts at a time
    monkeypatch.setattr(
        "export.onnx_session.MAX_VALUES", 5 * submodel.network.outputs * submodel.network.inputs[0]
    )
    graphs, _ = write_graphs(
        tmp_path, submodel, net, {**ORIGIN, "submodel": "w1"}, Examples(x, y, x[:4]), int8=False
    )
    wanted = graph_variants.onnx_export.predict(net, submodel.network, x).argmax(1)
    assert [graph.kind for graph in graphs] == ["fp32"]
    assert graphs[0].accuracy == pytest.approx((wanted == y).mean())


def test_unquantisable_or_non_finite_graph_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submodel = full(small("mlp"))
    net, x = drawn(submodel), batch(submodel.network, 20).numpy()
    honest = quantize_module.quantize

    def odd(path: Path, kind: str, examples: np.ndarray, out: Path) -> Path:
        if kind == "int8-s8s8":
            raise ExportError("no such luck")
        return broken(honest(path, kind, examples, out))  # type: ignore[arg-type]

    monkeypatch.setattr(graph_variants, "quantize", odd)
    graphs, absent = write_graphs(
        tmp_path, submodel, net, {**ORIGIN, "submodel": "w1"}, split(x, None), int8=True
    )
    assert [graph.kind for graph in graphs] == ["fp32"]
    assert absent == ("int8-s8s8: no such luck", "int8-u8s8: its outputs are not finite")
    assert {path.name for path in tmp_path.iterdir()} == {f"{submodel.name}.onnx"}


def broken(path: Path) -> Path:
    """Return the graph with its last scale set to NaN."""
    import onnx

    model = onnx.load(path)
    last = next(node for node in reversed(model.graph.node) if node.op_type == "DequantizeLinear")
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == last.input[1])
    scale.CopyFrom(
        onnx.numpy_helper.from_array(
            np.full_like(onnx.numpy_helper.to_array(scale), np.nan), scale.name
        )
    )
    onnx.save(model, path)
    return path
