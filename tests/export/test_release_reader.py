"""A release is complete, agrees with its networks, and is only read if every file matches the
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from federated.runtime.atomic_files import sha256

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from export import onnx_export, onnx_session, release_reader, release_writer
from export.release_writer import Contents
from federated.errors import ExportError, Unknown
from models import named_network, submodel_building
from models.cost import cost
from models.menu import menu
from models.submodel import Moments, Submodel

X = np.random.default_rng(0).integers(0, 17, (24, 1, 8, 8)).astype(np.uint8)
Y = np.arange(24) % 10
NETWORK = named_network.network("mlp-small", (1, 8, 8), 10, Moments((4.9,), (6.0,)))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "release"
    nets = {
        submodel: submodel_building.build(submodel)
        for submodel in reversed(menu(NETWORK, [0.125, 0.25], [1]))
    }
    release_writer.write(folder, Contents("spring", 7, nets, X, Y, about={"method": "fedavg"}))
    return folder


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    for file in release.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.slow
def test_release_contains_files_and_description_of_each_submodel(release: Path) -> None:
    read = release_reader.read(release)
    assert (read.run, read.round, read.inputs, read.dtype, read.objective, read.outputs) == (
        "spring",
        7,
        (1, 8, 8),
        "uint8",
        "class",
        10,
    )
    assert [entry.submodel for entry in read.submodels] == ["w0.125-d1", "w0.25-d1"]
    assert {path.name for path in release.iterdir()} == {
        "manifest.json",
        "MODEL.md",
        *(file.name for file in release_reader.list_files(read)),
    }
    for file in release_reader.list_files(read):
        path = release / file.name
        assert (file.sha256, file.size) == (sha256(path), path.stat().st_size)
    for entry, submodel in zip(read.submodels, menu(NETWORK, [0.125, 0.25], [1]), strict=True):
        assert (entry.parameters, entry.macs) == (cost(submodel).parameters, cost(submodel).macs)
        assert [variant.kind for variant in entry.variants] == ["fp32", "int8-u8s8", "int8-s8s8"]
        assert 0 <= entry.variants[0].max_abs_diff < 1e-5 < entry.variants[1].max_abs_diff
        assert (entry.variants[0].agreement, entry.absent) == (1.0, ())


def test_few_examples_are_split_between_calibration_and_measurement(release: Path) -> None:
    read = release_reader.read(release)
    assert (read.calibrated, read.examples, read.labelled) == (12, 12, True)
    for entry in read.submodels:
        session = onnx_session.load(release / entry.variants[0].file.name)
        assert entry.variants[0].accuracy == pytest.approx(
            (session.predict(X[12:]).argmax(1) == Y[12:]).mean()
        )
        assert (
            json.loads(
                onnx_session.load(release / entry.variants[1].file.name).metadata["quantisation"]
            )["examples"]
            == 12
        )


def test_manifest_describes_preprocessing(release: Path) -> None:
    assert release_reader.read(release).preprocessing == {
        "inside": True,
        "mean": [4.9],
        "std": [6.0],
    }


def test_a_device_needs_the_files_of_its_submodel_and_the_check(release: Path) -> None:
    read = release_reader.read(release, "w0.25-d1")
    graphs = [f"w0.25-d1{kind}.onnx" for kind in ("", ".int8-u8s8", ".int8-s8s8")]
    assert [file.name for file in release_reader.list_files(read, "w0.25-d1")] == [
        "check.tensors",
        *graphs,
        "w0.25-d1.tensors",
    ]
    with pytest.raises(Unknown, match=r"unknown submodel 'w1'; "):
        release_reader.read(release, "w1")


def test_check_contains_noise_and_outputs_of_each_graph(release: Path) -> None:
    read = release_reader.read(release)
    x, said = release_reader.read_check(release, read)
    assert (x.shape[1:], x.dtype) == (X.shape[1:], X.dtype)
    assert not any((one == real).all() for one in x for real in X)
    assert said.keys() == {
        variant.file.name for entry in read.submodels for variant in entry.variants
    }
    for name, wanted in said.items():
        assert np.abs(onnx_session.load(release / name).predict(x) - wanted).max() < 1e-6


def test_weights_rebuild_the_network(release: Path) -> None:
    entry = release_reader.find_entry(release_reader.read(release), "w0.25-d1")
    fields, weights = release_reader.read_weights(release, entry)
    submodel = msgspec.convert(fields, Submodel)
    assert submodel.name == entry.submodel
    net = submodel_building.build(submodel)
    net.load_state_dict(
        {name: torch.from_numpy(value.copy()) for name, value in weights.items()}, strict=False
    )
    found = onnx_session.load(release / entry.variants[0].file.name).predict(X)
    assert np.abs(found - onnx_export.predict(net, NETWORK, X)).max() < 1e-5


def test_without_labels_graphs_are_compared_with_pytorch(tmp_path: Path) -> None:
    submodel = menu(NETWORK, [0.125], [1])[0]
    nets = {submodel: submodel_building.build(submodel)}
    made = release_writer.write(tmp_path, Contents("spring", 7, nets, X[:12], calibration=X[12:]))
    assert (made.calibrated, made.examples, made.labelled) == (12, 12, False)
    session = onnx_session.load(tmp_path / made.submodels[0].variants[1].file.name)
    net = onnx_session.load(tmp_path / made.submodels[0].variants[0].file.name)
    wanted = (session.predict(X[:12]).argmax(1) == net.predict(X[:12]).argmax(1)).mean()
    assert [
        (variant.accuracy, variant.agreement) for variant in made.submodels[0].variants[:2]
    ] == [(None, 1.0), (None, pytest.approx(wanted))]


@pytest.mark.slow
@pytest.mark.parametrize(("int8", "absent"), [(True, 2), (False, 0)])
def test_int8_requires_calibration_examples(int8: bool, absent: int, tmp_path: Path) -> None:
    submodel = menu(NETWORK, [0.125], [1])[0]
    nets = {submodel: submodel_building.build(submodel)}
    made = release_writer.write(tmp_path, Contents("spring", 7, nets, X[:5], int8=int8))
    entry = release_reader.read(tmp_path).submodels[0]
    assert ([variant.kind for variant in entry.variants], len(entry.absent)) == (["fp32"], absent)
    assert all(
        "expected at least 4 examples to calibrate on, found 2" in why for why in entry.absent
    )
    assert made.examples == (3 if int8 else 5)


@pytest.mark.parametrize(
    ("accuracy", "agreement", "good"),
    [
        (0.89, 0.5, True),
        (0.95, 0.5, True),
        (0.889, 1.0, False),
        (float("nan"), 1.0, False),
        (None, 0.99, True),
        (None, 0.98, False),
    ],
)
def test_int8_may_lose_one_point(accuracy: float | None, agreement: float, good: bool) -> None:
    file = release_reader.File("f", 1, "")
    first = release_reader.Variant("fp32", file, 0.0, None if accuracy is None else 0.9)
    other = release_reader.Variant("int8-u8s8", file, 0.1, accuracy, agreement)
    assert release_reader.accurate_variants(
        release_reader.Entry("w1", 1, 1, (first, other), file)
    ) == ((first, other) if good else (first,))


def test_version_is_the_digest_of_the_manifest(copy: Path) -> None:
    before = release_reader.read_version(copy)
    assert before == sha256(copy / "manifest.json")[:12]
    (copy / "manifest.json").write_bytes((copy / "manifest.json").read_bytes() + b" ")
    assert release_reader.read_version(copy) != before


@pytest.mark.slow
def test_a_graph_that_disagrees_with_its_network_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submodel = menu(NETWORK, [0.125], [1])[0]
    honest = onnx_export.predict
    monkeypatch.setattr(
        onnx_export, "predict", lambda net, network, x: honest(net, network, x) + np.float32(0.01)
    )
    nets = {submodel: submodel_building.build(submodel)}
    with pytest.raises(ExportError, match=r"differ from the network's by 0\.0"):
        release_writer.write(tmp_path, Contents("spring", 7, nets, X))
    assert not (tmp_path / "manifest.json").exists()


def graph_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the file of the first graph."""
    return manifest["submodels"][0]["variants"][0]["file"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: graph_of(m).update(sha256="0" * 64), "expected sha256 0000"),
        (lambda m: graph_of(m).update(name="../other.onnx"), "a file within the folder"),
        (lambda m: graph_of(m).update(name="gone.onnx"), r"gone\.onnx: no such file"),
        (
            lambda m: m["submodels"][0]["weights"].update(sha256="0" * 64),
            r"w0\.125-d1\.tensors: expected sha256 0000",
        ),
        (lambda m: m["check"].update(name="/etc/hostname"), "a file within the folder"),
        (lambda m: m["check"].update(name="w0.125-d1.onnx"), "expected sha256"),
        (lambda m: m["submodels"][0].update(submodel="w1-d1"), "expected .*'w1-d1'"),
        (lambda m: m.update(round=8), "expected .*'8'.* found .*'7'"),
        (lambda m: m.update(outputs=11), "expected .*11.* found .*10"),
        (lambda m: m.update(round="seven"), r"Expected `int`.*\$\.round"),
        (lambda m: m.pop("run"), "missing required field `run`"),
        (lambda m: m.update(format=1), "expected format 2, found 1"),
        (
            lambda m: m["submodels"][0]["variants"][0].update(kind="int4"),
            r"Invalid enum value 'int4'",
        ),
        (
            lambda m: m["submodels"][0]["variants"].clear(),
            "expected graphs of w0.125-d1, fp32 first, each once; found none",
        ),
        (
            lambda m: m["submodels"][0]["variants"].append(m["submodels"][0]["variants"][0]),
            "each once; found .*fp32, .*fp32",
        ),
        (lambda m: m["submodels"].clear(), "expected at least one submodel, found none"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(
    copy: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=message):
        release_reader.read(copy)


def test_a_folder_without_a_manifest_and_a_foreign_one_are_refused(copy: Path) -> None:
    (copy / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(ExportError, match="not a manifest of a release"):
        release_reader.read(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(ExportError, match=r"found no manifest\.json"):
        release_reader.read(copy)


def test_submodels_with_different_outputs_are_refused(tmp_path: Path) -> None:
    other = named_network.network("mlp-small", (1, 8, 8), 3)
    nets = {
        submodel_building.full(network): submodel_building.build(submodel_building.full(network))
        for network in (NETWORK, other)
    }
    with pytest.raises(ExportError, match="the same inputs, objective, outputs and vocabulary"):
        release_writer.write(tmp_path, Contents("spring", 7, nets, X))
