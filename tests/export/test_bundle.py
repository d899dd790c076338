"""A release is written whole, compared with its networks, and read back only if every file is what the manifest says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from export import bundle, graph, verify
from federated.errors import ExportError
from models import families

X = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.uint8)
NETWORK = families.network("preresnet", (1, 8, 8), 10, (4.9,), (6.0,))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "release"
    nets = {submodel: families.build(submodel) for submodel in reversed(families.menu(NETWORK, [0.125, 0.25], [1]))}
    bundle.write(folder, "spring", 7, nets, X)
    return folder


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    for file in release.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_release_holds_one_file_per_submodel_and_what_it_is(release: Path) -> None:
    read = bundle.read(release)
    assert (read.run, read.round, read.inputs, read.dtype, read.objective, read.outputs) == ("spring", 7, (1, 8, 8), "uint8", "class", 10)
    assert [entry.submodel for entry in read.submodels] == ["w0.125-d1.1.1", "w0.25-d1.1.1"]
    assert {path.name for path in release.iterdir()} == {"manifest.json", *(entry.file for entry in read.submodels)}
    for entry, submodel in zip(read.submodels, families.menu(NETWORK, [0.125, 0.25], [1]), strict=True):
        path = release / entry.file
        assert (entry.sha256, entry.size) == (verify.sha256(path), path.stat().st_size)
        assert entry.parameters == sum(int(np.prod(shape)) for shape in families.shapes(submodel).values())
        assert 0 <= entry.max_abs_diff < 1e-5


def test_a_graph_that_disagrees_with_its_network_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submodel = families.menu(NETWORK, [0.125], [1])[0]
    honest = graph.predict
    monkeypatch.setattr(graph, "predict", lambda net, network, x: honest(net, network, x) + np.float32(0.01))
    with pytest.raises(ExportError, match=r"found a difference of 0\.0"):
        bundle.write(tmp_path, "spring", 7, {submodel: families.build(submodel)}, X)
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["submodels"][0].update(sha256="0" * 64), "expected sha256 0000"),
        (lambda m: m["submodels"][0].update(file="../other.onnx"), "a file within the folder"),
        (lambda m: m["submodels"][0].update(file="gone.onnx"), r"gone\.onnx: No such file"),
        (lambda m: m["submodels"][0].update(submodel="w1-d1"), "expected .*'w1-d1'"),
        (lambda m: m.update(round=8), "expected .*'8'.* found .*'7'"),
        (lambda m: m.update(outputs=11), "expected .*11.* found .*10"),
        (lambda m: m.update(round="seven"), r"Expected `int`.*\$\.round"),
        (lambda m: m.pop("run"), "missing required field `run`"),
        (lambda m: m.update(format=2), "expected format 1, found 2"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(copy: Path, change: Callable[[dict[str, object]], object], message: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=message):
        bundle.read(copy)


def test_a_folder_without_a_manifest_and_a_foreign_one_are_refused(copy: Path) -> None:
    (copy / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(ExportError, match="not a manifest of a release"):
        bundle.read(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(ExportError, match=r"found no manifest\.json"):
        bundle.read(copy)


def test_submodels_of_different_answers_are_no_release(tmp_path: Path) -> None:
    other = families.network("preresnet", (1, 8, 8), 3)
    nets = {families.full(network): families.build(families.full(network)) for network in (NETWORK, other)}
    with pytest.raises(ExportError, match="the same inputs, objective and outputs, found"):
        bundle.write(tmp_path, "spring", 7, nets, X)
