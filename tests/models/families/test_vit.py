"""The vision transformer: counts of InCo and NeFL, layers, torchvision's weights, unsuitable
images.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.pretrained import load
from models.submodel_building import build, full, initial, shapes
from models.user_networks.library_networks import import_library
from tests.support.pretrained import assert_equals_torchvision
from tests.support.published_network_sizes import read_published_counts

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)


@pytest.mark.parametrize("layers", [8, 9, 10, 11, 12])
def test_counts_of_inco(layers):
    (submodel,) = menu(network("vit-s", IMAGENET, 10), (1,), (layers,))
    assert (cost(submodel).parameters, cost(submodel).macs) == read_published_counts(
        f"InCo/ViT-S_{layers}layers_224"
    )


@pytest.mark.parametrize("layers", [8, 12])
def test_counts_at_32_pixels(layers):
    (submodel,) = menu(network("vit-s-32", CIFAR, 10), (1,), (layers,))
    assert (cost(submodel).parameters, cost(submodel).macs) == read_published_counts(
        f"proposal/ViT-S_{layers}layers_32_patch4"
    )


def test_counts_of_nefl():
    made = cost(full(network("vit-b", IMAGENET, 10)))
    assert (made.parameters, made.macs) == read_published_counts("NeFL/ViT-B16_224")


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "parameters", "macs"),
    [
        ("vit-s", IMAGENET, 10, 21_669_514, 4_598_502_144),  # InCo, 12 layers
        ("vit-b", IMAGENET, 10, 85_806_346, 17_563_067_904),  # NeFL
        # torchvision's vit_b_16 says 86567656 and 17.56 G
        ("vit-b", IMAGENET, 1000, 86_567_656, 17_563_828_224),
        ("vit-tiny", IMAGENET, 1000, 5_717_416, 1_253_683_200),  # DeiT-Ti: 5.7 M and 1.3 G
    ],
)
def test_counts(model, inputs, outputs, parameters, macs):
    made = cost(full(network(model, inputs, outputs)))
    assert (made.parameters, made.macs) == (parameters, macs)


def test_half_the_width_halves_features_and_keeps_heads_and_tokens():
    (half,) = menu(network("vit-s-32", CIFAR, 10), (0.5,), (1,))
    found = shapes(half)
    assert found["sections.0.0.attention.project.weight"] == (3, 6, 32, 192)
    assert found["sections.0.0.attention.out.weight"] == (192, 6, 32)
    assert found["sections.0.0.feed.linear1.weight"] == (768, 192)
    assert found["positions"] == (65, 192)


def test_any_layer_may_be_left_out():
    """Without a layer the network equals one with that layer's two residual functions at 0."""
    whole = full(network("vit-micro", (1, 8, 8), 10), ("steps",))
    part = replace(whole, mask=((0, 1, 1),))
    tensors = {
        name: torch.rand_like(value) * 0.1
        for name, value in initial(whole.network, 0, ("steps",)).items()
    }
    for name in ("attention", "feed"):
        tensors[f"sections.0.0.{name}.step"] = torch.zeros(1)
    nets = [build(submodel).eval() for submodel in (whole, part)]
    nets[0].load_state_dict(tensors)
    nets[1].load_state_dict({name: tensors[name] for name in shapes(part)})
    x = torch.rand(2, 1, 8, 8)
    assert torch.allclose(nets[0](x), nets[1](x), atol=1e-6)


def test_it_is_initialised_as_torchvisions():
    """The feed-forward's biases have deviation 1e-6, those of attention and head are 0 as is the
    head; positions have 0.02.
    """
    net = build(full(network("vit-tiny-32", CIFAR, 10))).requires_grad_(False)
    layer = net.sections[0][0]
    assert 0.8e-6 < float(layer.feed.linear1.bias.std()) < 1.2e-6
    assert 0.019 < float(net.positions.std()) < 0.021
    assert not any(
        map(
            torch.any,
            (
                layer.attention.project.bias,
                layer.attention.out.bias,
                net.linear.weight,
                net.linear.bias,
            ),
        )
    )


@pytest.mark.slow
def test_outputs_equal_torchvisions():
    assert_equals_torchvision("vit-b", IMAGENET)


@pytest.mark.skipif(not find_spec("timm"), reason="needs the extra networks")
def test_outputs_equal_timms(tmp_path, monkeypatch):
    """With timm's weights from a file, and as if downloaded, in the network that resizes images."""
    timm = import_library("timm")
    torch.manual_seed(0)
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10).eval().requires_grad_(False)
    for value in theirs.parameters():
        value.add_(torch.randn_like(value) * 0.02)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    made = network("vit-tiny", IMAGENET, 10)
    found, note = load(str(tmp_path / "weights.pth"), made, initial(made, 0))
    assert note.startswith(f"{len(found)} of {len(found)} tensors from timm's vit_tiny_patch16_224")
    ours = build(full(made)).eval()
    ours.load_state_dict(found, strict=False)
    x = torch.randn(2, *IMAGENET)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), atol=1e-4)
    monkeypatch.setattr("models.pretrained.load_trained", lambda name, made: theirs)
    assert load("timm:DEFAULT", made, initial(made, 0))[0].keys() == found.keys()
    with pytest.raises(ValueError, match=r"timm has no weights for vit-micro; .*vit-s, vit-s-224"):
        load("timm:DEFAULT", network("vit-micro", CIFAR, 10), {})


def test_images_are_resized_to_three_channels():
    """A grey image of 28 pixels, and the same one enlarged beforehand, in three channels."""
    grey = network("vit-s-224", (1, 28, 28), 10)
    assert cost(full(grey)).parameters == 21_669_514
    net = build(full(grey)).eval()
    x = torch.rand(2, 1, 28, 28)
    large = torch.nn.functional.interpolate(x, (224, 224), mode="bilinear").expand(-1, 3, -1, -1)
    assert net.resize(x).shape == (2, *IMAGENET)
    assert torch.allclose(net.resize(x), large, atol=1e-6)
    assert torch.equal(net.resize(large), large)


@pytest.mark.parametrize("inputs", [(3, 30, 32), (3, 32, 30), (3, 2, 2)])
def test_images_must_divide_into_patches(inputs):
    with pytest.raises(
        ValueError,
        match=rf"images of {inputs[1]} x {inputs[2]} pixels.*patches of 4 x 4",
    ):
        network("vit", inputs, 10)
