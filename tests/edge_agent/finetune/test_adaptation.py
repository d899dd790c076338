"""Adapting a released network to a device's own data, and discarding it if it did not improve."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from edge_agent.finetune import adaptation
from edge_agent.finetune.adaptation import (
    FinetuneRequest,
    adapt,
    has_improved,
    load_submodel,
    run_finetune,
)
from edge_agent.infer.infer_command import infer
from edge_agent.infer.infer_options import InferRequest
from export import release_reader, release_writer
from export.onnx_session import load
from export.release_writer import Contents
from federated.data import loading
from federated.data.dataset import Dataset
from federated.errors import ConfigError, DataError, ExportError, Unknown, UsageError
from federated.task import Recipe
from federated.training.evaluation_passes import calibrate
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import train
from federated.wire import tensors
from models import named_network, submodel_building
from models.menu import menu
from models.submodel import Network, Submodel

NAME = "w0.25-d1.1.1"
# a device with three classes
MINE = {"data": "digits", "shard": "1/5", "partition": "classes:3"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a release of a network that was trained on all digits for a short time."""
    torch.set_num_threads(1)
    data = loading.load_central("digits")
    network = named_network.network("preresnet", (1, 8, 8), 10, data.card())
    submodel = menu(network, [0.25], [1])[0]
    torch.manual_seed(0)
    net = submodel_building.build(submodel)
    train(
        net,
        submodel,
        Recipe(epochs=1, lr=0.05),
        TrainingSet(data.x[:300], data.y[:300], range(10)),
        seed=0,
    )
    calibrate(net, data.x[:300], 32, 0)
    folder = tmp_path_factory.mktemp("made") / "release"
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    contents = Contents(
        "spring",
        7,
        {submodel: net.eval()},
        data.x_held[:64],
        data.y_held[:64],
        int8=False,
        classes=names,
    )
    release_writer.write(folder, contents)
    return folder


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "copy"))


def make_request(release: Path, tmp_path: Path, **changes: Any) -> FinetuneRequest:
    return replace(
        FinetuneRequest("pi", out=tmp_path / "mine", model=release, epochs=2, **MINE), **changes
    )


def run(request: FinetuneRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_finetune(request, "json", lambda line: None))
    return found


@pytest.mark.slow
def test_the_adapted_network_improves_on_held_out_examples_and_infer_serves_it(
    release: Path, tmp_path: Path
) -> None:
    found = run(make_request(release, tmp_path))
    assert found["kept"] == "personal"
    assert found["after"]["accuracy"] > found["before"]["accuracy"] + 0.05
    own = loading.load_device("digits", name="pi", shard="1/5", partition="classes:3")
    assert (found["examples"], found["held_out"]) == (len(own.y), len(own.y_held))
    np.save(tmp_path / "x.npy", own.x_held)
    told = json.loads(
        infer(
            InferRequest("pi", model=Path(found["model"]), inputs=(tmp_path / "x.npy",), threads=1),
            "json",
            lambda line: None,
        )
    )
    right = np.mean([one["label"] == y for one, y in zip(told["answers"], own.y_held, strict=True)])
    assert right >= found["after"]["accuracy"] - 0.02, "int8 may have been chosen"
    assert (told["run"], told["round"], told["submodel"]) == ("spring", 7, NAME)
    assert told["answers"][0]["name"] in {
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
    }
    assert not (tmp_path / "mine.part").exists()


@pytest.mark.slow
def test_the_scores_before_are_those_of_the_released_graph(release: Path, tmp_path: Path) -> None:
    found = run(make_request(release, tmp_path))
    own = loading.load_device("digits", name="pi", shard="1/5", partition="classes:3")
    graph = load(release / f"{NAME}.onnx").predict(own.x_held).argmax(1)
    assert found["before"]["accuracy"] == pytest.approx(float((graph == own.y_held).mean()))


@pytest.mark.slow
def test_a_network_that_did_not_improve_is_discarded_unless_asked_for(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation, "has_improved", lambda *_: False)
    request = make_request(release, tmp_path)
    found = run(request)
    assert (found["kept"], found["model"], found["weights"]) == ("release", str(release), "")
    assert "did not improve" in run_finetune(request, "text", lambda line: None)
    assert not (tmp_path / "mine").exists()
    assert run(replace(request, anyway=True))["kept"] == "personal"
    assert (tmp_path / "mine" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("before", "after", "objective", "kept"),
    [
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.9, "loss": 2.0}, "class", True),
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.8, "loss": 0.9}, "class", True),
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.8, "loss": 1.0}, "class", False),
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.7, "loss": 0.1}, "class", False),
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.7, "loss": 0.9}, "next", True),
        ({"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.9, "loss": float("nan")}, "value", False),
    ],
)
def test_a_higher_accuracy_or_for_texts_a_lower_loss_is_an_improvement(
    before: dict[str, float], after: dict[str, float], objective: str, kept: bool
) -> None:
    network = Network("lenet", "5", (1, 8, 8), 2, objective=objective)
    assert has_improved(before, after, network) == kept


@pytest.mark.slow
def test_only_the_head_can_be_trained(release: Path, tmp_path: Path) -> None:
    run(make_request(release, tmp_path, only="head", anyway=True))
    entry = release_reader.read_manifest(release).submodels[0]
    old, new = (
        release_reader.read_weights(release, entry)[1],
        release_reader.read_weights(
            tmp_path / "mine", release_reader.read_manifest(tmp_path / "mine").submodels[0]
        )[1],
    )
    submodel, _ = load_submodel(release, entry)
    changed = {
        name
        for name in submodel_building.shapes(submodel)
        if not np.array_equal(old[name], new[name])
    }
    assert changed == submodel_building.find_labelled(submodel)


def test_without_the_exporter_only_the_weights_are_written(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines: list[str] = []
    found = json.loads(run_finetune(make_request(release, tmp_path), "json", lines.append))
    assert (found["kept"], found["model"]) == ("personal", "")
    meta, values = tensors.decode(Path(found["weights"]).read_bytes())
    assert msgspec.convert(meta, Submodel).name == NAME
    assert all(np.isfinite(value).all() for value in values.values())
    assert "[export]" in lines[-1]


@pytest.mark.slow
def test_a_second_run_replaces_the_first_result_and_a_failure_keeps_it(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_request(release, tmp_path, anyway=True))
    first = release_reader.read_version(tmp_path / "mine")

    def fail(*_: object, **__: object) -> None:
        raise ExportError("the exporter failed")

    with monkeypatch.context() as patch:
        patch.setattr(release_writer, "write", fail)
        with pytest.raises(ExportError, match="the exporter failed"):
            run(make_request(release, tmp_path, anyway=True))
    assert release_reader.read_version(tmp_path / "mine") == first
    run(make_request(release, tmp_path, anyway=True, epochs=1))
    assert release_reader.read_version(tmp_path / "mine") != first
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["mine"]


def test_training_that_diverges_writes_nothing(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(request: FinetuneRequest, submodel: Submodel) -> Recipe:
        return Recipe(epochs=1, lr=1e30, clip=0.0)

    monkeypatch.setattr(adaptation, "_make_recipe", poisoned)
    with pytest.raises(
        ConfigError, match=r"nothing was written: the loss is .* a learning rate below"
    ):
        run(make_request(release, tmp_path))
    assert not (tmp_path / "mine").exists()


def test_data_that_do_not_fit_the_release_are_rejected(release: Path, tmp_path: Path) -> None:
    def own(**changes: Any) -> Any:
        return replace(
            loading.load_device("digits", name="pi", shard="1/10", partition="iid"), **changes
        )

    data = own()
    for wrong, message in (
        (
            own(x=data.x[:, :, :4], x_held=data.x_held[:, :, :4]),
            r"found uint8 \[1, 4, 8\]",
        ),
        (own(outputs=11), "expected 10 outputs as run 'spring' has, found 11"),
        (
            own(x_held=data.x_held[:0], y_held=data.y_held[:0]),
            "expected held-out examples .* found none",
        ),
        (own(x=data.x[:1], y=data.y[:1]), "expected at least 2 training examples, found 1"),
    ):
        with pytest.raises(DataError, match=message):
            adapt(make_request(release, tmp_path), release, NAME, wrong, lambda line: None)


def test_invalid_weights_are_rejected(copy: Path, tmp_path: Path) -> None:
    entry = release_reader.read_manifest(copy).submodels[0]
    plain, values = release_reader.read_weights(copy, entry)
    name = next(iter(submodel_building.shapes(load_submodel(copy, entry)[0])))
    for meta, given, message in (
        ({"family": 1}, values, "expected a submodel and its weights"),
        (plain, {**values, name: values[name][:1]}, f"expected {name} of shape"),
        (
            plain,
            {key: value for key, value in values.items() if key != name},
            f"expected {name} of shape .*, found none",
        ),
        (
            plain,
            {**values, name: np.full_like(values[name], np.nan)},
            f"found NaN or infinity in {name}",
        ),
        (
            {**plain, "network": {**plain["network"], "family": "unheard"}},
            values,
            "no network can be built of 'unheard'",
        ),
    ):
        (copy / entry.weights.name).write_bytes(tensors.encode(meta, given))
        with pytest.raises(ExportError, match=message):
            load_submodel(
                copy,
                replace(entry, weights=release_reader.describe_file(copy / entry.weights.name)),
            )
    with pytest.raises(ExportError, match="expected sha256"):
        run(make_request(copy, tmp_path))


def test_a_network_of_ones_own_is_built_only_if_its_owner_allows_it(copy: Path) -> None:
    entry = release_reader.read_manifest(copy).submodels[0]
    plain, values = release_reader.read_weights(copy, entry)
    (copy / entry.weights.name).write_bytes(
        tensors.encode({**plain, "network": {**plain["network"], "family": "os:abort"}}, values)
    )
    with pytest.raises(UsageError, match=r"os:abort.*--network os:abort"):
        load_submodel(
            copy, replace(entry, weights=release_reader.describe_file(copy / entry.weights.name))
        )


def test_invalid_sources_and_targets_are_rejected(release: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"model": None}, "--broker and --model are missing"),
        ({"model": release / f"{NAME}.onnx"}, "expected the folder of a release"),
        ({"out": release}, "expected another folder"),
    ):
        with pytest.raises(UsageError, match=message):
            run(make_request(release, tmp_path, **changes))
    with pytest.raises(Unknown, match="unknown submodel 'w9'"):
        run(make_request(release, tmp_path, submodel="w9"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="expected a new folder, or one that this command wrote"):
        run(make_request(release, tmp_path))
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.slow
def test_no_folder_with_other_content_is_replaced(
    release: Path, copy: Path, tmp_path: Path
) -> None:
    page, backup = tmp_path / "page", tmp_path / "mine.old"
    for folder in (page, backup, tmp_path / "mine.part"):
        folder.mkdir()
        (folder / "manifest.json").write_text('{"name": "a web page"}')
    personal = tmp_path / "personal"
    run(make_request(release, tmp_path, anyway=True, epochs=1, out=personal))
    (personal / "notes.txt").write_text("mine")
    # of another program; a release of the run; a personal release with another file
    for out in (page, copy, personal):
        with pytest.raises(
            UsageError, match="expected a new folder, or one that this command wrote"
        ):
            run(make_request(release, tmp_path, out=out))
    run(make_request(release, tmp_path, anyway=True, epochs=1))
    assert (backup / "manifest.json").exists()
    assert (tmp_path / "mine.part" / "manifest.json").exists()


@pytest.mark.slow
def test_a_masked_network_is_adapted_to_a_devices_texts(tmp_path: Path) -> None:
    # each token is the one before plus 3, modulo 11
    words = (np.arange(60 * 9).reshape(60, 9) * 3 % 11).astype(np.int64)
    data = Dataset(
        "mine",
        words[:50, :-1].copy(),
        words[:50, 1:].copy(),
        words[50:, :-1].copy(),
        words[50:, 1:].copy(),
        11,
        "token",
    )
    submodel = submodel_building.full(
        named_network.network("transformer-small", (8,), 11, target="token")
    )
    assert submodel.network.objective == "masked"
    torch.manual_seed(0)
    nets = {submodel: submodel_building.build(submodel).eval()}
    contents = Contents("spring", 1, nets, data.x_held[:8], int8=False)
    release_writer.write(tmp_path / "release", contents)
    lines: list[str] = []
    request = FinetuneRequest(
        "pi", out=tmp_path / "mine", model=tmp_path / "release", epochs=2, lr=0.05
    )
    found = adapt(request, tmp_path / "release", submodel.name, data, lines.append)
    assert found.kept == "personal"
    assert found.after["perplexity"] < 0.5 * found.before["perplexity"]
    assert "perplexity" in lines[0]
    entry = release_reader.read(tmp_path / "mine").submodels[0]
    assert entry.variants[0].accuracy == pytest.approx(found.after["accuracy"], abs=0.2), (
        "other tokens are hidden"
    )
