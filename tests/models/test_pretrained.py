"""Initial weights: own checkpoints, torchvision's weights, and unsuitable files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.families.mobilenet import convert
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.pretrained import load
from models.submodel import Network
from models.submodel_building import initial
from tests.support.pretrained import original

IMAGES = (3, 32, 32)


def tiny(outputs: int = 10, channels: int = 3) -> Network:
    return network("mobilenet-tiny", (channels, 8, 8), outputs)


def saved(tensors: dict[str, Tensor], path: Path) -> str:
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    return str(path)


def weights(made: Network) -> dict[str, Tensor]:
    """Return torchvision's state dict of a network, counters included."""
    torch.manual_seed(0)
    return dict(original(made).state_dict())


def test_own_checkpoint_is_loaded_completely(tmp_path):
    made = tiny()
    theirs, base = initial(made, 1), initial(made, 0)
    extra = {
        "stats/w1/stem.norm.running_mean": torch.ones(16),
        "linear.weight@w0.5": torch.ones(1),
        "c/linear.bias": torch.ones(10),
    }
    found, note = load(saved(theirs | extra, tmp_path / "round.safetensors"), made, base)
    assert found.keys() == base.keys()
    assert all(torch.equal(found[name], theirs[name]) for name in base)
    assert note.startswith(
        f"{len(base)} of {len(base)} tensors from a checkpoint of mobilenet-tiny"
    )


def test_a_checkpoint_without_statistics_leaves_them_as_they_are(tmp_path):
    """A run with static batch norm saves none."""
    made = tiny()
    base, parameters = (
        initial(made, 0),
        {name: value for name, value in initial(made, 1).items() if "running" not in name},
    )
    found, _ = load(saved(parameters, tmp_path / "round.safetensors"), made, base)
    assert torch.equal(found["stem.norm.running_var"], torch.ones(16))
    assert torch.equal(found["linear.weight"], parameters["linear.weight"])


def test_feature_tensors_are_optional(tmp_path):
    made = tiny()
    plain, steps = initial(made, 1), initial(made, 2, ("steps",))
    found, _ = load(saved(plain, tmp_path / "plain.safetensors"), made, steps)
    assert torch.equal(found["sections.1.1.step"], torch.ones(1))
    assert torch.equal(found["linear.weight"], plain["linear.weight"])
    found, _ = load(saved(steps, tmp_path / "steps.safetensors"), made, plain)
    assert found.keys() == plain.keys()


def test_head_for_other_classes_is_reinitialised(tmp_path):
    base, other = initial(tiny(), 0), initial(tiny(7), 1)
    found, note = load(saved(other, tmp_path / "round.safetensors"), tiny(), base)
    assert torch.equal(found["linear.weight"], base["linear.weight"])
    assert torch.equal(found["last.conv.weight"], other["last.conv.weight"])
    assert "7 outputs and 10 are needed: linear.bias, linear.weight" in note


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_torchvision_weights_are_recognised_by_names(tmp_path, ending):
    made = network("mobilenet", IMAGES, 10)
    base, state = initial(made, 0), weights(made)
    found, note = load(saved(state, tmp_path / f"net{ending}"), made, base)
    expected = convert("v2-cifar", state)
    assert found.keys() == base.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in base)
    assert "torchvision's mobilenet_v2" in note


def write_weights_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: dict[str, Tensor], digest: str = ""
) -> None:
    """Write a weights file where torchvision's entry points to, named by its hash or a wrong
    one; torch.hub starts empty.
    """
    saved(state, tmp_path / "net.pth")
    digest = digest or hashlib.sha256((tmp_path / "net.pth").read_bytes()).hexdigest()
    path = (tmp_path / "net.pth").rename(tmp_path / f"net-{digest[:8]}.pth")
    entry = import_torchvision("models").get_model_weights("mobilenet_v2")["DEFAULT"]
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(entry.value, "url", path.as_uri())


def test_weights_are_downloaded_and_their_hash_is_checked(monkeypatch, tmp_path):
    """A head for ten classes replaces ImageNet's 1000."""
    made = network("mobilenet-v2", IMAGES, 10)
    base, state = initial(made, 0), weights(network("mobilenet-v2", IMAGES, 1000))
    write_weights_file(monkeypatch, tmp_path, state)
    found, note = load("torchvision:DEFAULT", made, base)
    assert torch.equal(found["stem.conv.weight"], state["features.0.0.weight"])
    assert torch.equal(found["linear.weight"], base["linear.weight"])
    assert "torchvision's mobilenet_v2 (torchvision:DEFAULT)" in note
    assert "1000 outputs" in note


def test_weights_of_a_wrong_hash_are_refused(monkeypatch, tmp_path):
    made = network("mobilenet-v2", IMAGES, 10)
    write_weights_file(monkeypatch, tmp_path, {"a": torch.ones(1)}, digest="00000000")
    with pytest.raises(ValueError, match=r"cannot download .* from file:.*invalid hash value"):
        load("torchvision:DEFAULT", made, initial(made, 0))


def test_weights_of_a_deeper_network_are_refused(tmp_path):
    """A ResNet-34 has every tensor of a ResNet-18 in the same shapes, but is another network."""
    deep, made = network("resnet-34", IMAGES, 10), network("resnet-18", IMAGES, 10)
    path = saved(weights(deep), tmp_path / "net.pth")
    with pytest.raises(
        ValueError,
        match=r"nor torchvision's resnet18 \(only 11,191,242 of 21,306,826 numbers",
    ):
        load(path, made, initial(made, 0))


def test_unknown_torchvision_weights_are_reported():
    made = network("mobilenet-v2", IMAGES, 10)
    with pytest.raises(ValueError, match="expected one of IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT"):
        load("torchvision:MINE", made, {})
    with pytest.raises(ValueError, match=r"no weights for mobilenet-tiny; .*mobilenet-v2"):
        load("torchvision:DEFAULT", tiny(), {})


def change(tensors: dict[str, Tensor], name: str, value: Tensor | None) -> dict[str, Tensor]:
    return {key: kept for key, kept in {**tensors, name: value}.items() if kept is not None}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "sections.0.0.residual.project.conv.weight",
            None,
            "no tensor sections.0.0.residual.project.conv.weight; expected [8, 16, 1, 1]",
        ),
        ("more", torch.ones(3), "tensor more of shape [3]"),
        ("stem.norm.bias", torch.ones(3), "tensor stem.norm.bias: expected shape [16], found [3]"),
        (
            "stem.conv.weight",
            torch.ones(16, 1, 3, 3),
            "found [16, 1, 3, 3]: it reads 1 input channels",
        ),
        (
            "linear.weight",
            torch.ones(10, 3),
            "tensor linear.weight: expected shape [10, 128], found [10, 3]",
        ),
        ("linear.bias", torch.tensor([torch.nan] * 10), "tensor linear.bias is not finite"),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_tensor(tmp_path, name, value, message):
    base = initial(tiny(), 0)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(saved(change(base, name, value), tmp_path / "round.safetensors"), tiny(), base)


def test_weights_of_another_network_are_refused(tmp_path):
    made = network("mobilenet-v2", IMAGES, 10)
    path = saved({"conv1.weight": torch.ones(1)}, tmp_path / "net.pt")
    with pytest.raises(
        ValueError,
        match=r"no tensor stem.conv.weight of shape \[32, 3, 3, 3\].*conv1.weight is missing",
    ):
        load(path, made, initial(made, 0))


def test_file_without_tensors_is_reported(tmp_path):
    path = tmp_path / "net.pth"
    for content, message in (
        ([1, 2], "found list"),
        ({"model": 1, "epoch": 2}, "found model, epoch"),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=message):
            load(str(path), tiny(), {})
    # code is no tensor, and does not run
    torch.save({"a": test_file_without_tensors_is_reported}, path)
    with pytest.raises(ValueError, match="more than tensors; save a state_dict"):
        load(str(path), tiny(), {})


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_missing_or_damaged_file_is_reported(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be read"):
        load(str(tmp_path / name), tiny(), {})
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read"):
        load(str(tmp_path / name), tiny(), {})


def test_unknown_suffix_is_reported():
    with pytest.raises(
        ValueError, match=r"expected a .safetensors, .pth or .pt file, or torchvision:DEFAULT"
    ):
        load("net.onnx", tiny(), {})
