"""An exported graph has its network's outputs for raw data at any batch size, and contains
nothing of the exporting machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from torch import Tensor, nn  # noqa: E402
from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: E402

from export.onnx_export import export, predict, weights_digest  # noqa: E402
from export.onnx_session import METADATA, load  # noqa: E402
from export.pytorch_to_onnx import OPSET, import_onnx  # noqa: E402
from export.quantize import quantize  # noqa: E402
from federated.errors import DataError, ExportError  # noqa: E402
from models import named_network, submodel_building  # noqa: E402
from models.menu import menu  # noqa: E402
from models.submodel import Moments, Network  # noqa: E402

ORIGIN = {"run": "spring", "round": 7, "submodel": "w0.25-d1.1.1"}
TOY = Network("toy", "", (2,), 2, (1.0,), (2.0,))


class Toy(nn.Module):
    """(x - 1) / 2, then logits (a + b, a - b)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x.float() - 1) / 2)


class Text(nn.Module):
    """Logits [N, 3, T] of tokens 0, 1, 2; id 3 is a hidden token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).transpose(1, 2)


class TextClasses(nn.Module):
    """Logits [N, 2] of tokens 0 to 4: the sums of their entries in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).sum(1)


class AsFloat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() if x.sum() > 0 else -x.float()


def test_all_exports_use_one_table_of_translations() -> None:
    import_onnx()
    first, second = (ONNXRegistry().from_torchlib(opset_version=OPSET) for _ in range(2))
    assert first is second
    assert first.functions


def test_texts_with_classes_are_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    network, net = Network("texts", "", (3,), 2, vocabulary=5), TextClasses()
    x = np.array([[0, 1, 4], [2, 2, 3]])
    session = load(export(net, network, x, tmp_path / "texts.onnx", ORIGIN))
    assert (session.dtype, session.inputs, session.outputs, session.tokens) == (
        np.int64,
        (3,),
        2,
        5,
    )
    np.testing.assert_allclose(session.predict(x), predict(net, network, x), rtol=1e-6)
    assert json.loads(session.metadata["input"])["range"] == [0, 4]
    with pytest.raises(DataError, match="expected tokens 0 to 4, found 1 to 5"):
        session.predict(x + 1)
    with pytest.raises(DataError, match="int64"):
        export(net, network, x.astype(np.float32), tmp_path / "texts.onnx", ORIGIN)


def test_a_submodel_of_the_real_network_keeps_its_logits_at_every_batch_size(
    tmp_path: Path,
) -> None:
    network = named_network.network("preresnet", (1, 8, 8), 10, Moments((4.9,), (6.0,)))
    submodel = menu(network, [0.25], [1])[0]
    net = submodel_building.build(submodel)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after a calibration: neither 0 nor 1
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    x = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.uint8)
    path = export(net, network, x[:2], tmp_path / "net.onnx", ORIGIN)
    assert net.training, "the network given stays as it was"
    for batch in (1, 2, 5):
        found = load(path).predict(x[:batch])
        assert np.abs(found - predict(net, network, x[:batch])).max() < 1e-5
    model = onnx.load(path)
    assert [
        (entry.domain, entry.version) for entry in model.opset_import if entry.domain == ""
    ] == [("", OPSET)]
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8


@pytest.mark.slow
def test_the_graph_takes_raw_data_of_the_type_of_the_example(tmp_path: Path) -> None:
    for dtype in (np.uint8, np.float32):
        path = export(Toy(), TOY, np.zeros((2, 2), dtype), tmp_path / "toy.onnx", ORIGIN)
        session = load(path)
        assert (session.inputs, session.dtype, session.outputs) == ((2,), dtype, 2)
        # (3 - 1) / 2 = 1, (7 - 1) / 2 = 3
        assert session.predict(np.array([[3, 7]], dtype)).tolist() == [[4.0, -2.0]]


def test_properties_contain_origin_preprocessing_and_weights(tmp_path: Path) -> None:
    found = load(
        export(Toy(), TOY, np.zeros((2, 2), np.uint8), tmp_path / "toy.onnx", ORIGIN)
    ).metadata
    assert set(found) == {*METADATA, "input", "output"}
    assert (
        found["run"],
        found["round"],
        found["submodel"],
        found["objective"],
        found["outputs"],
    ) == ("spring", "7", "w0.25-d1.1.1", "class", "2")
    assert json.loads(found["preprocessing"]) == {"inside": True, "mean": [1.0], "std": [2.0]}
    assert json.loads(found["versions"])["torch"] == torch.__version__
    assert found["weights"] == weights_digest(Toy())


def test_the_file_alone_describes_its_input_and_output(tmp_path: Path) -> None:
    network = Network("toy", "", (3, 2, 2), 2, (1.0,) * 3, (2.0,) * 3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    net.insert(0, AsFloat())
    x = np.zeros((2, 3, 2, 2), np.uint8)
    path = export(net, network, x, tmp_path / "net.onnx", ORIGIN, ("cat", "dog"))
    found = load(path).metadata
    given, made = json.loads(found["input"]), json.loads(found["output"])
    assert given["axes"] == ["batch", "channel", "height", "width"]
    assert (given["dtype"], given["range"]) == ("uint8", [0, 255])
    assert "RGB" in given["channel_order"]
    assert made["classes"] == ["cat", "dog"]
    assert "logits" in made["meaning"]
    small = quantize(path, "int8-u8s8", x, tmp_path / "int8.onnx")
    for graph in (onnx.load(path).graph, onnx.load(small).graph):
        assert "spring" in graph.doc_string
        assert "height" in graph.input[0].doc_string
        assert "cat, dog" in graph.output[0].doc_string


def test_values_leave_the_graph_in_raw_units(tmp_path: Path) -> None:
    network = replace(TOY, objective="value", shift=(100.0, -1.0), scale=(10.0, 2.0))
    net, x = Toy(), np.array([[3, 7]], np.uint8)
    session = load(export(net, network, np.zeros((2, 2), np.uint8), tmp_path / "toy.onnx", ORIGIN))
    assert session.objective == "value"
    # 4 and -2, standardised
    assert session.predict(x).tolist() == predict(net, network, x).tolist() == [[140.0, -5.0]]
    assert json.loads(session.metadata["preprocessing"])["scale"] == [10.0, 2.0]
    assert session.metadata["weights"] == weights_digest(net)


def test_texts_go_in_as_tokens(tmp_path: Path) -> None:
    network, x = (
        Network("toy", "", (5,), 3, objective="masked"),
        np.array([[0, 1, 2, 3, 3], [2, 2, 2, 2, 2]]),
    )
    session = load(export(Text(), network, x, tmp_path / "text.onnx", ORIGIN))
    assert (session.inputs, session.dtype, session.objective, session.outputs) == (
        (5,),
        np.int64,
        "masked",
        3,
    )
    assert session.predict(np.concatenate([x, x])).shape == (4, 3, 5)
    assert json.loads(session.metadata["preprocessing"]) == {"inside": True}
    given = json.loads(session.metadata["input"])
    assert (given["hidden_token"], given["range"]) == (3, [0, 2])
    with pytest.raises(DataError, match=r"at least 2 of int64 \[5\], found float32"):
        export(Text(), network, x.astype(np.float32), tmp_path / "text.onnx", ORIGIN)


def test_weights_digest_depends_on_names_and_values_only() -> None:
    changed = Toy()
    with torch.no_grad():
        changed.linear.weight[0, 0] += 1e-6
    assert weights_digest(Toy()) == weights_digest(Toy()) != weights_digest(changed)


@pytest.mark.slow
def test_export_is_deterministic_and_contains_no_local_path(
    tmp_path: Path,
) -> None:
    files = [
        export(Toy(), TOY, np.zeros((2, 2), np.uint8), tmp_path / name, ORIGIN).read_bytes()
        for name in ("one.onnx", "two.onnx")
    ]
    assert files[0] == files[1]
    assert b".py" not in files[0]
    assert str(Path(__file__).parent).encode() not in files[0]
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "two.onnx"}


def test_a_network_that_cannot_be_traced_is_an_export_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="Branching cannot be exported"):
        export(Branching(), TOY, np.zeros((2, 2), np.uint8), tmp_path / "net.onnx", ORIGIN)
    assert not list(tmp_path.iterdir())


def test_exporter_error_without_message_is_an_export_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.raises(
        ExportError, match="Toy cannot be exported: AssertionError: no reason given"
    ):
        export(Toy(), TOY, np.zeros((2, 2), np.uint8), tmp_path / "net.onnx", ORIGIN)


@pytest.mark.parametrize(
    "example", [np.zeros((1, 2), np.uint8), np.zeros((2, 3), np.uint8), np.zeros((2, 2))]
)
def test_an_unfit_example_is_refused(tmp_path: Path, example: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"at least 2 of uint8 or float32 \[2\]"):
        export(Toy(), TOY, example, tmp_path / "net.onnx", ORIGIN)


def test_a_graph_without_an_origin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="found none for run"):
        export(
            Toy(),
            TOY,
            np.zeros((2, 2), np.uint8),
            tmp_path / "net.onnx",
            {"round": 1, "submodel": "s"},
        )
