"""MobileNetV2: counts of torchvision's network and of FedFA's submodels, torchvision's weights."""

from __future__ import annotations

import pytest
import torch

from models.cost import cost
from models.layers.batch_norm import norms
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, shapes
from tests.support.pretrained import assert_equals_torchvision
from tests.support.published_network_sizes import count_network, read_published_counts

CIFAR = (3, 32, 32)


def counts(repeats: tuple[int, ...], width: float) -> tuple[int, int]:
    """Return parameters and multiply-adds. repeats: blocks of the five sections that have more than
    one.
    """
    (submodel,) = menu(network("mobilenet", CIFAR, 10), (width,), ((1, *repeats, 1),))
    return count_network(submodel)


@pytest.mark.parametrize(
    ("repeats", "width", "parameters", "macs"),
    [
        ((2, 2, 2, 2, 2), 0.5, 548_522, 19_298_304),
        ((2, 3, 3, 3, 3), 0.75, 1_328_290, 50_054_144),
        ((2, 3, 4, 3, 3), 1, 2_236_682, 87_976_448),
    ],
)
def test_counts_of_fedfa(repeats, width, parameters, macs):
    assert counts(repeats, width) == (parameters, macs)


@pytest.mark.parametrize(
    ("repeats", "width"),
    [
        ((2, 2, 2, 2, 2), 0.75),
        ((2, 2, 2, 2, 2), 1.0),
        ((2, 3, 3, 3, 3), 0.5),
        ((2, 3, 3, 3, 3), 1.0),
        ((2, 3, 4, 3, 3), 0.5),
        ((2, 3, 4, 3, 3), 0.75),
    ],
    ids=str,
)
def test_published_counts(repeats, width):
    """Those that the test above does not count."""
    assert counts(repeats, width) == read_published_counts(
        f"FedFA-proposal/MobileNetV2 n={repeats} w={width}"
    )


def test_counts_of_torchvision():
    """3,504,872 parameters and 0.301 G multiply-adds at 224, torchvision's own figures."""
    whole = cost(full(network("mobilenet-v2", (3, 224, 224), 1000)))
    assert (whole.parameters, whole.macs) == (3_504_872, 300_774_272)


def test_outputs_equal_torchvisions():
    assert_equals_torchvision("mobilenet-v2")


def test_all_but_the_last_convolution_narrows():
    """At 0.3: 32 channels become ceil(9.6), 96 hidden ones ceil(28.8), and 1280 stay."""
    (narrow,) = menu(network("mobilenet", CIFAR, 10), (0.3,), (1,))
    assert shapes(narrow)["stem.conv.weight"] == (10, 3, 3, 3)
    assert shapes(narrow)["sections.1.0.residual.depthwise.conv.weight"] == (29, 1, 3, 3)
    assert shapes(narrow)["last.conv.weight"] == (1280, 96, 1, 1)


def test_presets_for_small_images_have_the_tensors_of_the_large():
    small, large = (
        full(network(f"mobilenet-{preset}", CIFAR, 10)) for preset in ("v2-cifar", "v2")
    )
    assert shapes(small) == shapes(large)
    assert count_network(small)[1] > 10 * count_network(large)[1]


def test_initialisation_matches_the_source():
    """The classifier has a deviation of 0.01, convolutions sqrt(2 / fan out), norms 1 and 0."""
    torch.manual_seed(0)
    net = build(full(network("mobilenet", CIFAR, 10))).requires_grad_(False)
    assert float(net.linear.weight.std()) == pytest.approx(0.01, rel=0.05)
    assert not net.linear.bias.any()
    assert float(net.last.conv.weight.std()) == pytest.approx((2 / 1280) ** 0.5, rel=0.05)
    assert all(
        bool((m.weight == 1).all() and (m.bias == 0).all()) and m.eps == 1e-5
        for m in norms(net).values()
    )
