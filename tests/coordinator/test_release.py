"""What a run learned as ONNX: of methods whose submodels have homes of their own, are made, or stay on devices in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.release import write_release
from federated.errors import ExportError
from tests.support.federation import RUN, Member, digits, federate

QUICK = {
    "model.name": "resnet-small",
    "data.name": "digits",
    "rounds": 1,
    "train.epochs": 1,
    "train.steps": 3,
    "train.batch": 16,
    "evaluate.devices": False,
}


def trained(folder: Path, *pins: str, **given: Any) -> dict[str, str]:
    """Runs a round with a device per pin; the submodels that were exported, and which of them each device finds as its own."""
    members = [Member(f"a{i}", digits(i, len(pins))) for i in range(len(pins))]
    named = {key.replace("_", "."): value for key, value in given.items()}
    federate(folder, members, {**QUICK, "assign.submodels": {f"a{i}": pin for i, pin in enumerate(pins)}, **named})
    made, assignment = write_release(RUN, folder / "out", (), None, folder / "runs", int8=False)
    released = {entry.submodel for entry in made.submodels}
    assert len(released) == len(made.submodels)
    assert all(entry.variants[0].max_abs_diff < 1e-4 for entry in made.submodels)
    assert set(assignment.values()) <= released, "an agent would wait for a submodel that nobody publishes"
    return assignment


@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_branches_are_merged_and_every_device_finds_the_one_network(tmp_path: Path, norm: str) -> None:
    found = trained(tmp_path, "w1-d2.2.2", "w1-d2.2.2-x2", method_name="dynamicfl", method_branches=2, train_norm=norm)
    assert found == {"a0": "w1-d2.2.2", "a1": "w1-d2.2.2"}
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} == {"w1-d2.2.2.onnx"}


@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_submodels_with_norms_and_steps_of_their_own_are_exported(tmp_path: Path, norm: str) -> None:
    pins = ("w0.447214-d2.2.2-steps", "w1-d2.2.2-steps")
    assert set(trained(tmp_path, *pins, method_name="nefl-w", method_gammas=(0.2, 1.0), train_norm=norm).values()) == set(pins)


def test_what_a_hypernetwork_makes_is_exported(tmp_path: Path) -> None:
    assert set(trained(tmp_path, "w0.2-d2.2.2", "w1-d2.2.2", method_name="recipfl").values()) == {"w0.2-d2.2.2", "w1-d2.2.2"}


def test_networks_of_several_families_are_one_release(tmp_path: Path) -> None:
    found = trained(tmp_path, "mlp-w1-d2", "w1-d2.2.2", method_name="recipfl", method_models=("mlp",))
    assert set(found.values()) == {"mlp-w1-d2", "w1-d2.2.2"}
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} == {"mlp-w1-d2.onnx", "w1-d2.2.2.onnx"}


def test_layers_that_stay_on_devices_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"submodel w1-d1.1.1 under flexifed: \d+ tensors stay on the devices, such as linear.bias"):
        trained(tmp_path, "w1-d1.1.1", "w1-d2.2.2", method_name="flexifed", method_strategy="basic")
