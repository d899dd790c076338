"""An int8 graph is smaller, keeps its properties and accuracy; unsuitable graphs are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import torch  # noqa: E402

from export import onnx_export, onnx_session  # noqa: E402
from export.quantize import available_kinds, quantize  # noqa: E402
from export.release_reader import Kind  # noqa: E402
from federated.data.loading import load_central  # noqa: E402
from federated.errors import DataError, ExportError  # noqa: E402
from federated.task import Recipe  # noqa: E402
from federated.training.training_loop import train  # noqa: E402
from models.families.catalogue import FAMILIES  # noqa: E402
from models.menu import menu  # noqa: E402
from models.named_network import network  # noqa: E402
from models.submodel import Submodel  # noqa: E402
from models.submodel_building import build, full  # noqa: E402
from tests.models.test_every_family import batch  # noqa: E402
from tests.support.int8 import exact_int8  # noqa: E402
from tests.support.smallest_networks import small  # noqa: E402

STATIC: tuple[Kind, ...] = ("int8-u8s8", "int8-s8s8")
ATTENTIVE = ("transformer", "vit")
PLAIN = {"lenet", "preresnet", "resnet", "vgg"}  # convolutions, as of the digits' ResNet


def exported(submodel: Submodel, net: torch.nn.Module, x: np.ndarray, folder: Path) -> Path:
    return onnx_export.export(
        net,
        submodel.network,
        x[:2],
        folder / "net.onnx",
        {"run": "r", "round": 1, "submodel": submodel.name},
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ResNet trained to recognise digits."""
    whole = load_central("digits")
    card = whole.card()
    submodel = full(network("resnet-small", card.inputs, card.outputs, card))
    torch.manual_seed(0)
    net = build(submodel)
    train(
        net,
        submodel,
        Recipe(epochs=2, norm="tracked"),
        whole,
        seed=0,
    )
    return exported(submodel, net, whole.x, tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small ResNet with its initial weights."""
    whole = load_central("digits")
    card = whole.card()
    submodel = menu(network("resnet-small", card.inputs, card.outputs, card), (0.5,), (1,))[0]
    return exported(submodel, build(submodel).eval(), whole.x, tmp_path_factory.mktemp("untrained"))


@pytest.mark.slow
@exact_int8
@pytest.mark.parametrize("kind", STATIC)
def test_int8_reads_digits_as_well_and_is_a_third_of_the_size(
    digits: Path, kind: Kind, tmp_path: Path
) -> None:
    whole = load_central("digits")
    calibration, x, y = whole.x_held[:128], whole.x_held[128:], whole.y_held[128:]
    made = quantize(digits, kind, calibration, tmp_path / "int8.onnx")
    wanted, found = onnx_session.load(digits).predict(x), onnx_session.load(made).predict(x)
    before, after = ((out.argmax(1) == y).mean() for out in (wanted, found))
    assert before > 0.9
    assert after >= before - 0.01
    assert 0 < np.abs(found - wanted).mean() < 0.05 * wanted.std()
    assert made.stat().st_size < 0.35 * digits.stat().st_size


def test_properties_are_kept_and_record_the_quantisation(untrained: Path, tmp_path: Path) -> None:
    x = load_central("digits").x_held[:40]
    made = quantize(untrained, "int8-u8s8", x, tmp_path / "int8.onnx")
    before, after = (dict(onnx_session.load(path).metadata) for path in (untrained, made))
    done = json.loads(after.pop("quantisation"))
    assert (done["kind"], done["examples"]) == ("int8-u8s8", 40)
    assert before == after
    old, new = onnx.load(untrained), onnx.load(made)
    assert (old.ir_version, list(old.opset_import)) == (new.ir_version, list(new.opset_import))


def test_normalisation_stays_in_float32(untrained: Path, tmp_path: Path) -> None:
    """The first quantisation comes after the normalisation."""
    x = load_central("digits").x_held[:40]
    nodes = onnx.load(quantize(untrained, "int8-s8s8", x, tmp_path / "int8.onnx")).graph.node
    assert [node.op_type for node in nodes if node.op_type != "DequantizeLinear"][:4] == [
        "Cast",
        "Sub",
        "Div",
        "QuantizeLinear",
    ]


@pytest.mark.slow
@exact_int8
def test_signed_and_unsigned_activations_give_the_same_answers(
    digits: Path, tmp_path: Path
) -> None:
    x = load_central("digits").x_held
    one, other = (
        onnx_session.load(quantize(digits, kind, x[:40], tmp_path / f"{kind}.onnx")).predict(x[40:])
        for kind in STATIC
    )
    assert (one.argmax(1) == other.argmax(1)).mean() > 0.99


@pytest.mark.slow
@exact_int8
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - PLAIN))
def test_every_kind_of_family_can_be_int8(family: str, tmp_path: Path) -> None:
    """Untrained, on noise, with all weights random: the differences are each layer's rounding."""
    submodel = menu(small(family), (0.5,), (1,))[0]
    torch.manual_seed(0)
    net = build(submodel).eval()
    with torch.no_grad():
        for value in net.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    x = batch(submodel.network, 12).numpy()
    path = exported(submodel, net, x, tmp_path)
    assert available_kinds(path) == (*STATIC, "int8-dynamic") if family in ATTENTIVE else STATIC
    wanted = onnx_session.load(path).predict(x)
    for kind in available_kinds(path):
        found = onnx_session.load(quantize(path, kind, x[:8], tmp_path / f"{kind}.onnx")).predict(x)
        assert np.abs(found - wanted).mean() < 0.15 * wanted.std(), kind


def test_dynamic_int8_is_for_graphs_with_attention(untrained: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"net\.onnx: int8-dynamic .* without attention"):
        quantize(
            untrained, "int8-dynamic", load_central("digits").x_held[:4], tmp_path / "int8.onnx"
        )


@pytest.mark.parametrize(
    ("kind", "x", "error", "message"),
    [
        (
            "fp32",
            np.zeros((4, 1, 8, 8), np.uint8),
            ExportError,
            "expected a kind of int8 to quantise to, found 'fp32'",
        ),
        ("int8-u8s8", np.zeros((0, 1, 8, 8), np.uint8), ExportError, "found no examples"),
        (
            "int8-u8s8",
            np.zeros((4, 8, 8), np.uint8),
            DataError,
            r"expected uint8 of shape \[n, 1, 8, 8\]",
        ),
        ("int8-u8s8", np.zeros((4, 1, 8, 8), np.float32), DataError, "found float32"),
    ],
)
def test_unfit_examples_are_refused_and_nothing_is_written(
    untrained: Path,
    kind: Kind,
    x: np.ndarray,
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message):
        quantize(untrained, kind, x, tmp_path / "int8.onnx")
    assert not list(tmp_path.iterdir())


def test_foreign_graph_is_refused(make_graph: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected an exported submodel"):
        quantize(
            make_graph(given={}), "int8-u8s8", np.zeros((4, 2), np.uint8), tmp_path / "int8.onnx"
        )
    (tmp_path / "no.onnx").write_bytes(b"GIF89a")
    with pytest.raises(ExportError, match=r"no\.onnx: not a valid ONNX file"):
        available_kinds(tmp_path / "no.onnx")
