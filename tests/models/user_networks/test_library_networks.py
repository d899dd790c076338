"""Networks of torchvision, timm and transformers by name: submodels, weights and errors."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.pretrained import load
from models.submodel_building import build, find_labelled, full, initial, shapes
from models.user_networks import library_networks
from tests.support.user_networks import run_passes

pytestmark = pytest.mark.skipif(
    not (find_spec("timm") and find_spec("transformers")), reason="needs the extra networks"
)

RESNET = {
    "model_type": "resnet",
    "architectures": ["ResNetForImageClassification"],
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [2, 2],
    "layer_type": "basic",
    "num_labels": 1000,
}


@pytest.fixture
def transformers() -> Any:
    return library_networks.import_library("transformers")


@pytest.fixture
def folder(tmp_path: Path, transformers: Any) -> Path:
    """A network of transformers as the Hugging Face Hub has it, with random weights."""
    (tmp_path / "config.json").write_text(json.dumps(RESNET))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    torch.manual_seed(3)
    net = transformers.AutoModelForImageClassification.from_config(config)
    net.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "inputs", "sections"),
    [
        ("torchvision:resnet18", (3, 32, 32), 4),
        # 86 million parameters
        pytest.param("torchvision:vit_b_16", (3, 32, 32), 1, marks=pytest.mark.slow),
        ("torchvision:regnet_y_400mf", (3, 32, 32), 0),
        ("timm:test_vit", (1, 32, 32), 1),
        ("timm:test_efficientnet", (1, 32, 32), 0),
    ],
)
def test_a_library_s_network_is_narrowed_and_shortened(
    name: str, inputs: tuple[int, ...], sections: int
) -> None:
    made = network(name, inputs, 7)
    small = menu(made, (0.5, 1.0), (1, 2) if sections else (1,))[0]
    assert len(small.mask) == sections or not sections
    assert run_passes(small).shape == (3, 7)
    assert cost(small).macs < 0.45 * cost(full(made)).macs
    assert find_labelled(full(made))


def test_a_network_of_transformers_is_read_from_a_folder(folder: Path) -> None:
    made = network(f"hf:{folder}", (1, 32, 32), 7)
    small = menu(made, (0.5, 1.0), (1, 2))[0]
    assert len(small.mask) == 2
    assert run_passes(small).shape == (3, 7)


def test_trained_weights_of_transformers_are_loaded(folder: Path, transformers: Any) -> None:
    made = network(f"hf:{folder}", (3, 32, 32), 7)
    base = initial(made, 0)
    found, note = load("hf:DEFAULT", made, base)
    kept = transformers.AutoModelForImageClassification.from_pretrained(folder).state_dict()
    name = "resnet.embedder.embedder.convolution.weight"
    assert torch.equal(found[f"net.net.{name}"], kept[name])
    assert "the head is initialised at random, since the file has 1000 outputs" in note


def test_a_state_dict_of_the_network_itself_is_loaded(tmp_path: Path) -> None:
    made = network("torchvision:resnet18", (3, 32, 32), 7)
    theirs = import_torchvision("models").resnet18(num_classes=7)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    found, note = load(str(tmp_path / "weights.pth"), made, initial(made, 0))
    assert "from a state dict of torchvision:resnet18" in note
    net = build(full(made)).eval()
    net.load_state_dict({name: found[name] for name in shapes(full(made))}, strict=False)
    x = torch.rand(2, 3, 32, 32)
    statistics = {name: value for name, value in found.items() if "running" in name}
    net.load_state_dict(statistics, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(net(x), theirs.eval()(x))


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        (
            "torchvision:resnet19",
            (3, 32, 32),
            "model 'torchvision:resnet19': torchvision has no classifier 'resnet19'; it has",
        ),
        ("torchvision:resnet18", (1, 32, 32), "torchvision's networks read 3 channels, found 1"),
        ("timm:resnet19", (3, 32, 32), "timm has no network 'resnet19'"),
        ("hf:./no/such/folder", (3, 32, 32), "model 'hf:./no/such/folder': "),
    ],
)
def test_unknown_networks_are_refused(name: str, inputs: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(name, inputs, 7)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(library_networks.importlib, "import_module", miss)
    with pytest.raises(
        ValueError, match=r"timm is not installed; install it with pip install timm"
    ):
        network("timm:resnet18", (3, 32, 33), 7)


def test_weights_that_cannot_be_loaded_are_an_error() -> None:
    made = network("torchvision:resnet18", (3, 32, 32), 7)
    with pytest.raises(ValueError, match="timm has no weights for torchvision:resnet18"):
        load("timm:DEFAULT", made, {})
