"""Export to ONNX, for methods that own, generate or share the tensors of their submodels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.release.export_run import (
    ExportRequest,
    export_run,
    write_release,
)
from coordinator.release.release_examples import read_examples
from federated.data.loading import load_central
from federated.errors import DataError, ExportError
from models.submodel import Network
from tests.support.memory_federation import RUN, Member, digits, federate

QUICK = {
    "model.name": "mlp-small",
    "data.name": "digits",
    "rounds": 1,
    "train.epochs": 1,
    "train.steps": 3,
    "train.batch": 16,
    "evaluate.devices": False,
    "evaluate.examples": 20,
}


def run_and_export(folder: Path, *pins: str, **given: Any) -> dict[str, str]:
    """Run a round with a device per pinned submodel, and export it. Return the exported submodel of
    each device.
    """
    members = [Member(f"a{i}", digits(i, len(pins))) for i in range(len(pins))]
    named = {key.replace("_", "."): value for key, value in given.items()}
    assigned = {f"a{i}": pin for i, pin in enumerate(pins)}
    federate(folder, members, {**QUICK, "assign.submodels": assigned, **named})
    made, assignment = write_release(
        ExportRequest(RUN, folder / "runs", folder / "out", int8=False)
    )
    released = {entry.submodel for entry in made.submodels}
    assert len(released) == len(made.submodels)
    assert all(entry.variants[0].max_abs_diff < 1e-4 for entry in made.submodels)
    assert set(assignment.values()) <= released, (
        "otherwise an agent would wait for a submodel that is never published"
    )
    return assignment


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_branches_are_merged_into_one_network_for_all_devices(tmp_path: Path, norm: str) -> None:
    found = run_and_export(
        tmp_path,
        "w1-d2",
        "w1-d2-x2",
        method_name="dynamicfl",
        method_branches=2,
        train_norm=norm,
    )
    assert found == {"a0": "w1-d2", "a1": "w1-d2"}
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} == {"w1-d2.onnx"}


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_submodels_with_their_own_norms_and_steps_are_exported(tmp_path: Path, norm: str) -> None:
    pins = ("w0.447214-d2-steps", "w1-d2-steps")
    assert set(
        run_and_export(
            tmp_path, *pins, method_name="nefl-w", method_gammas=(0.2, 1.0), train_norm=norm
        ).values()
    ) == set(pins)


@pytest.mark.slow
def test_submodels_of_a_hypernetwork_are_exported(tmp_path: Path) -> None:
    found = run_and_export(tmp_path, "w0.2-d2", "w1-d2", method_name="recipfl")
    assert set(found.values()) == {"w0.2-d2", "w1-d2"}


@pytest.mark.slow
def test_networks_of_several_families_are_one_release(tmp_path: Path) -> None:
    found = run_and_export(
        tmp_path,
        "mlp-w1-d2",
        "w1-d3",
        method_name="recipfl",
        method_models=("mlp",),
        model_name="vit-micro",
    )
    assert set(found.values()) == {"mlp-w1-d2", "w1-d3"}
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} == {
        "mlp-w1-d2.onnx",
        "w1-d3.onnx",
    }


def test_names_of_classes_come_from_the_inputs(tmp_path: Path) -> None:
    table = tmp_path / "plants.csv"
    table.write_text("height,leaves,kind\n1.5,3,rose\n2,4,elm\n1,5,rose\n")
    x, y, classes = read_examples(table, Network("mlp", "", (2,), 2, (0.0,), (1.0,)), 0.15)
    assert (x.shape, classes) == ((3, 2), ("elm", "rose"))
    assert y is not None
    assert dict(zip(x[:, 0].tolist(), y.tolist(), strict=True)) == {1.5: 1, 2.0: 0, 1.0: 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one round, in a folder."""
    folder = tmp_path_factory.mktemp("run")
    settings = {**QUICK, "assign.submodels": {"a0": "w1-d2"}}
    federate(folder, [Member("a0", digits(0, 9))], settings)
    return folder


@pytest.mark.slow
def test_an_export_reports_the_size_and_accuracy_of_each_graph(run: Path) -> None:
    lines: list[str] = []
    found = export_run(ExportRequest(RUN, run / "runs", run / "told", ("w1-d2",)), lines.append)
    entry = found["submodels"][0]
    assert [variant["kind"] for variant in entry["variants"]] == ["fp32", "int8-u8s8", "int8-s8s8"]
    assert (found["calibrated"], found["examples"], found["labelled"]) == (128, 231, True)
    assert found["about"] == {"method": "fedfa", "data": "digits", "model": "mlp-small"}
    before, after = (variant["accuracy"] for variant in entry["variants"][:2])
    size = entry["variants"][1]["file"]["size"]
    assert lines[0] == "w1-d2: 13,322 parameters, 12,928 multiply-adds"
    assert lines[1].startswith("  fp32 ")
    assert f"accuracy {before:.4f}, differs from PyTorch by at most" in lines[1]
    assert lines[2].split()[:5] == [
        "int8-u8s8",
        f"{size / 1e3:.0f}",
        "kB",
        "accuracy",
        f"{after:.4f}",
    ]
    assert "measured on 231 real examples that were not used to calibrate" in lines
    assert (
        f"w1-d2 | 13,322 | 12,928 | int8-u8s8 | {size / 1e3:,.0f} kB | {after:.4f}"
        in (run / "told/MODEL.md").read_text()
    )


@pytest.mark.slow
def test_an_input_file_may_have_answers_or_none(run: Path) -> None:
    whole = load_central("digits")
    np.savez(run / "blind.npz", x=whole.x_held[:40])
    np.savez(run / "seeing.npz", x=whole.x_held[:40], y=whole.y_held[:40])
    for name, labelled in (("blind", False), ("seeing", True)):
        lines: list[str] = []
        found = export_run(
            ExportRequest(RUN, run / "runs", run / name, ("w1-d2",), run / f"{name}.npz"),
            lines.append,
        )
        assert (found["calibrated"], found["examples"], found["labelled"]) == (20, 20, labelled)
        assert all(
            (variant["accuracy"] is not None) == labelled
            for variant in found["submodels"][0]["variants"]
        )
        assert labelled or "agrees with PyTorch in " in lines[2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros((4, 1, 8, 8), np.uint8), "y": np.arange(4) + 9},
            "expected at most 10 classes in y, as in the network; found 13 classes",
        ),
        (
            {"x": np.zeros((4, 1, 8, 8), np.uint8), "y": np.zeros(4, np.float32)},
            "expected at most 10 classes in y, as in the network; found 1 values",
        ),
        ({"x": np.zeros((4, 1, 9, 8), np.uint8)}, r"odd\.npz: expected examples x of shape"),
        ({"x": np.zeros((1, 1, 8, 8), np.uint8)}, "example to export with: expected at least 2"),
    ],
)
def test_inputs_that_do_not_fit_the_network_are_refused(
    run: Path, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(DataError, match=message):
        export_run(
            ExportRequest(RUN, run / "runs", tmp_path / "out", ("w1-d2",), tmp_path / "odd.npz"),
            str,
        )


def test_a_method_that_keeps_layers_on_devices_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"submodel w1-d1.1.1 under flexifed: \d+ tensors stay on the devices, such as "
        r"linear.bias",
    ):
        run_and_export(
            tmp_path,
            "w1-d1.1.1",
            "w1-d2.2.2",
            method_name="flexifed",
            method_strategy="basic",
            model_name="resnet-small",
        )
