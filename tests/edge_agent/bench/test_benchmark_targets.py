"""Targets are prepared before they are measured."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from edge_agent.bench.benchmark_targets import (
    check_files,
    draw_noise,
    find_network,
    prepare_target,
    resolve_runtimes,
    select_submodels,
)
from federated.errors import ConfigError, ExportError, Unknown, UsageError
from models.submodel import Network

torch = pytest.importorskip("torch")
KEPT = Path(__file__).parents[2] / "export"
TINY = find_network("preresnet", (1, 8, 8), 10)
TEXT = find_network("transformer-small", (8,), 12)


def test_network_for_texts_is_found_by_name() -> None:
    assert (TINY.objective, TEXT.objective) == ("class", "masked")


def test_invalid_network_is_named() -> None:
    with pytest.raises(Unknown, match=r"unknown model 'preresne'; did you mean preresnet"):
        find_network("preresne", (3, 32, 32), 10)
    with pytest.raises(ConfigError, match=r"--model: preresnet: .*--inputs and --classes"):
        find_network("preresnet", (3, 32), 10)


def test_submodels_are_selected_by_name_patterns() -> None:
    assert [s.name for s in select_submodels(TINY, (0.25, 1.0), (), ())] == [
        "w0.25-d4.4.4",
        "w1-d4.4.4",
    ]
    assert [
        s.name for s in select_submodels(TINY, (0.25, 0.5, 1.0), (1, 2), ("w0.5-*", "w1-d2*"))
    ] == [
        "w0.5-d1.1.1",
        "w0.5-d2.2.2",
        "w1-d2.2.2",
    ]
    with pytest.raises(Unknown, match=r"unknown submodel 'w3-\*'; known: .*w0.25-d4.4.4"):
        select_submodels(TINY, (0.25,), (), ("w0.25*", "w3-*"))
    with pytest.raises(ConfigError, match="widths above 0"):
        select_submodels(TINY, (0.0,), (), ())


def test_int8_kind_suits_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, kind in (("x86_64", "onnx-int8-u8s8"), ("aarch64", "onnx-int8-s8s8")):
        monkeypatch.setattr(platform, "machine", lambda found=machine: found)
        assert resolve_runtimes(("onnx", "onnx-int8"), TINY) == ("onnx", kind)
        assert resolve_runtimes(("onnx-int8",), TEXT) == ("onnx-int8-dynamic",)
    assert resolve_runtimes(("onnx-int8", "onnx-int8-s8s8"), TINY) == (
        "onnx-int8-s8s8",
    )  # once, on ARM


def test_invalid_runtime_is_named() -> None:
    with pytest.raises(Unknown, match="unknown runtime 'onxx'; did you mean onnx"):
        resolve_runtimes(("onxx",), TINY)
    with pytest.raises(UsageError, match="--runtime torch: ONNX files can only"):
        resolve_runtimes(("torch",), None)


@pytest.mark.parametrize(
    ("network", "dtype", "shape"), [(TINY, "float32", (4, 1, 8, 8)), (TEXT, "int64", (4, 8))]
)
def test_noise_matches_inputs_and_labels(
    network: Network, dtype: str, shape: tuple[int, ...]
) -> None:
    x, y = draw_noise(network, 4)
    assert (x.dtype.name, x.shape, len(y)) == (dtype, shape, 4)
    assert y.max() < network.outputs
    assert np.array_equal(x, draw_noise(network, 4)[0])


@pytest.mark.slow
def test_every_runtime_gets_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from export.onnx_session import load
    from federated.wire import tensors
    from models.cost import cost
    from models.submodel_building import build

    (submodel,) = select_submodels(TINY, (0.25,), (1,), ())
    made = prepare_target("preresnet", submodel, ("torch", "onnx", "onnx-int8-u8s8"), 32, tmp_path)
    assert (made.name, made.parameters, made.memory) == (
        "w0.25-d1.1.1",
        cost(submodel).parameters,
        cost(submodel, 32).memory,
    )
    net = build(submodel).eval()
    missing, extra = net.load_state_dict(
        {
            name: torch.from_numpy(v.copy())
            for name, v in tensors.decode(made.files["torch"].read_bytes())[1].items()
        },
        strict=False,
    )
    assert not extra
    assert all(name.endswith("num_batches_tracked") for name in missing)
    x = draw_noise(TINY, 4)[0]
    with torch.no_grad():
        wanted = net(torch.from_numpy(x)).numpy()
    assert wanted.std() > 0.01  # numbers that did not vanish on their way
    assert np.abs(load(made.files["onnx"]).predict(x) - wanted).max() < 1e-4
    assert np.abs(load(made.files["onnx-int8-u8s8"]).predict(x) - wanted).max() < 0.2


def test_files_are_targets_by_their_names(tmp_path: Path) -> None:
    copy = tmp_path / "toy.onnx"
    copy.write_bytes((KEPT / "toy.onnx").read_bytes())
    assert [t.name for t in check_files([KEPT / "toy.onnx", KEPT / "image.onnx"], "cpu")] == [
        "toy.onnx",
        "image.onnx",
    ]
    assert [t.name for t in check_files([KEPT / "toy.onnx", copy], "cpu")] == [
        str(KEPT / "toy.onnx"),
        str(copy),
    ]
    with pytest.raises(UsageError, match="each file once"):
        check_files([copy, tmp_path / "." / "toy.onnx"], "cpu")
    with pytest.raises(ConfigError, match="nix"):
        check_files([copy, tmp_path / "nix.onnx"], "cpu")


@pytest.mark.slow
def test_failed_preparation_hides_the_temporary_folder(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    (submodel,) = select_submodels(find_network("preresnet", (1, 8, 8), 10), (0.25,), (1,), ())
    with pytest.raises(
        ExportError, match=r"^w0\.25-d1\.1\.1\.onnx: int8-dynamic .* without attention"
    ):
        prepare_target("preresnet", submodel, ("onnx-int8-dynamic",), 0, tmp_path)
