"""VGG: counts of FlexiFed, HeteroFL and torchvision, dropped layers, pools, torchvision's
weights.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.cost import cost
from models.families.vgg import NAMES, VGG
from models.menu import menu
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.submodel_building import build, full, shapes, statistics
from tests.support.pretrained import original
from tests.support.published_network_sizes import read_published_counts

CIFAR = (3, 32, 32)


@pytest.mark.parametrize("depth", ["11", "13", "16", "19"])
def test_counts_of_flexifed(depth):
    made = cost(full(network(f"vgg-{depth}", CIFAR, 10)))
    assert (made.parameters, made.macs) == read_published_counts(f"FlexiFed/vgg{depth}_bn")


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "parameters", "macs"),
    [
        ("vgg-11", CIFAR, 10, 28_149_514, 171_679_744),  # FlexiFed
        ("vgg-19", CIFAR, 10, 38_958_922, 417_046_528),
        # torchvision's vgg11_bn and vgg16_bn
        ("vgg-11", (3, 224, 224), 1000, 132_868_840, 7_609_090_048),
        ("vgg-16", (3, 224, 224), 1000, 138_365_992, 15_470_264_320),
        # HeteroFL, Table 1, MNIST: 1.6 M. By hand: 9 (64 + 64 128 + 128 256 + 256 512) + 3 960 +
        # 5130; sides 28, 14, 7, 3.
        ("vgg-heterofl", (1, 28, 28), 10, 1_556_874, 39_974_912),
    ],
)
def test_counts(model, inputs, outputs, parameters, macs):
    made = cost(full(network(model, inputs, outputs)))
    assert (made.parameters, made.macs) == (parameters, macs)


def test_counts_of_heterofls_rates():
    """Half of the channels: 9 (32 + 32 64 + 64 128 + 128 256) + 3 480 + 2570."""
    (half,) = menu(network("vgg-heterofl", (1, 28, 28), 10), (0.5,), (1,))
    assert cost(half).parameters == 9 * (32 + 32 * 64 + 64 * 128 + 128 * 256) + 3 * 480 + 2570


def test_the_smallest_depth_of_vgg_19_is_vgg_11():
    """One, one, two, two and two convolutions have the names, shapes and cost of the shallow
    network.
    """
    deep, shallow = network("vgg-19", CIFAR, 10), network("vgg-11", CIFAR, 10)
    part = replace(full(deep), mask=((1, 0), (1, 0), (1, 1, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0)))
    assert shapes(part) == shapes(full(shallow))
    assert cost(part).macs == cost(full(shallow)).macs


@pytest.mark.parametrize(
    ("model", "inputs", "pools", "first"),
    [
        ("vgg-11", CIFAR, 5, (4096, 512, 1)),
        ("vgg-11", (1, 28, 28), 4, (4096, 512, 1)),  # 28, 14, 7, 3, 1, and nothing left to pool
        ("vgg-11", (1, 1, 9), 0, (4096, 512, 9)),
        ("vgg", (1, 28, 28), 3, (128, 64, 9)),
        ("vgg", (1, 8, 20), 3, (128, 64, 2)),
    ],
)
def test_pool_requires_two_by_two_pixels(model, inputs, pools, first):
    made = full(network(model, inputs, 10))
    assert build(made, "meta").pools == pools
    assert shapes(made)["hidden.0.weight"] == first


def test_the_first_block_of_a_section_stays():
    with pytest.raises(ValueError, match="drops the first block"):
        build(replace(full(network("vgg", (1, 8, 8), 10)), mask=((0, 1), (1, 1), (1, 1))))


def test_torchvisions_presets_start_as_torchvision_does():
    """He-normal convolutions by fan out, linear layers with deviation 0.01, zero biases."""
    torch.manual_seed(0)
    (narrow,) = menu(network("vgg-11", CIFAR, 10), (0.125,), (1,))
    net = build(narrow)
    conv = net.sections[4][0].conv
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert net.hidden[1].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not conv.bias.any()
    assert not net.hidden[0].bias.any()


@pytest.mark.slow
def test_outputs_equal_torchvisions():
    """At 32x32, which is fast: torchvision repeats the one remaining position 49 times, so the
    weights of the first linear add up.
    """
    torch.manual_seed(0)
    made = network("vgg-11", CIFAR, 10)
    theirs, ours = original(made, init_weights=False), build(full(made)).eval()
    tensors = VGG.torchvision.convert("11", theirs.state_dict())
    tensors["hidden.0.weight"] = tensors["hidden.0.weight"].sum(2, keepdim=True)
    missing, unexpected = ours.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    x = torch.randn(3, *CIFAR)
    with torch.no_grad():
        found, expected = ours(x), theirs(x)
    assert float((found - expected).abs().max()) < 1e-4 * float(
        (expected - expected.mean(0)).abs().max()
    )


@pytest.mark.parametrize("preset", NAMES)
def test_torchvisions_tensors_have_our_names_and_shapes(preset):
    with torch.device("meta"):
        state = import_torchvision("models").get_model(NAMES[preset], num_classes=10).state_dict()
    whole = full(network(f"vgg-{preset}", (3, 224, 224), 10))
    tensors = VGG.torchvision.convert(preset, state)
    assert {name: tuple(value.shape) for name, value in tensors.items()} == shapes(
        whole
    ) | statistics(whole)
    del state["features.1.running_mean"]
    with pytest.raises(KeyError, match=r"features\.1\.running_mean"):
        VGG.torchvision.convert(preset, state)
