"""DenseNet-121: counts, widths, dropped layers, torchvision's weights."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from models.cost import cost
from models.families.densenet import DENSENET
from models.menu import menu
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.submodel_building import build, full, shapes
from tests.support.pretrained import assert_equals_torchvision

CIFAR, SMALL = (3, 32, 32), (1, 12, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "parameters", "macs"),
    [
        # torchvision's densenet121
        ("densenet-121", (3, 224, 224), 1000, 7_978_856, 2_834_161_664),
        # without the stem's norm (128), 3x3 for 7x7 (64 x 3 x 40), and 10 classes
        ("densenet-121-cifar", CIFAR, 10, 7_978_856 - 128 - 7_680 - 990 * 1025, 888_350_720),
        ("densenet-121-recipfl", CIFAR, 10, 1_000_618, 125_341_440),
    ],
)
def test_counts(model, inputs, outputs, parameters, macs):
    made = cost(full(network(model, inputs, outputs)))
    assert (made.parameters, made.macs) == (parameters, macs)


def test_half_the_width_is_the_network_of_half_the_growth():
    """RecipFL's weak device: stem 12, growth 6, bottlenecks 24, transitions to 24, 48, 96."""
    (half,) = menu(network("densenet-121-recipfl", CIFAR, 10), (0.5,), (24,))
    found = shapes(half)
    assert found["stem.weight"] == (12, 3, 3, 3)
    assert found["sections.2.23.conv1.grown.weight"] == (24, 23, 6)
    assert found["sections.3.0.conv2.weight"] == (6, 24, 3, 3)
    assert [found[f"transitions.{i}.conv.inputs.weight"][0] for i in range(3)] == [24, 48, 96]
    assert found["linear.grown.weight"] == (10, 16, 6)


def test_a_shallow_network_keeps_the_widths_of_transitions():
    """A transition from 16 plus three times 8 channels outputs 20, with one layer left as with
    three.
    """
    whole, (shallow,) = (
        full(network("densenet-small", SMALL, 10)),
        menu(network("densenet-small", SMALL, 10), (1,), (1,)),
    )
    assert shapes(whole)["transitions.0.conv.grown.weight"] == (20, 3, 8)
    assert shapes(shallow)["transitions.0.conv.grown.weight"] == (20, 1, 8)
    assert shapes(shallow)["sections.1.0.conv1.inputs.weight"] == (32, 20, 1, 1)


def test_layer_reads_all_earlier_layers():
    """The last layer of a block changes its output when the first one does."""
    torch.manual_seed(0)
    net, x, seen = (
        build(full(network("densenet-small", SMALL, 10))).eval(),
        torch.randn(2, *SMALL),
        [],
    )
    net.sections[0]["2"].register_forward_hook(lambda module, args, out: seen.append(out))
    net(x)
    torch.nn.init.zeros_(net.sections[0]["0"].conv2.weight)
    net(x)
    assert seen[0].shape == (2, 8, 12, 12)
    assert not torch.allclose(*seen)


def test_only_last_layers_of_a_block_can_be_dropped():
    whole = full(network("densenet-small", SMALL, 10))
    with pytest.raises(ValueError, match="drops a layer before one that it keeps"):
        build(replace(whole, mask=((1, 0, 1), (1, 1, 1), (1, 1, 1))))
    with pytest.raises(ValueError, match="drops the first block"):
        build(replace(whole, mask=((1, 1, 1), (1, 1, 1), (0, 0, 0))))


def test_too_small_images_are_refused():
    with pytest.raises(ValueError, match="cannot take examples"):
        network("densenet-121", (3, 16, 16), 10)


@pytest.mark.slow
def test_outputs_equal_torchvisions():
    assert_equals_torchvision("densenet-121")


def test_missing_torchvision_tensor_is_named():
    with torch.device("meta"):
        state = import_torchvision("models").densenet121().state_dict()
    del state["features.transition2.norm.running_var"]
    with pytest.raises(KeyError, match=r"features\.transition2\.norm\.running_var"):
        DENSENET.torchvision.convert("121", state)


def test_older_names_in_torchvision_files_are_accepted():
    with torch.device("meta"):
        state = import_torchvision("models").densenet121().state_dict()
    older = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))(?=\d)", r"\1.", name): value
        for name, value in state.items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in older
    assert (
        DENSENET.torchvision.convert("121", older).keys()
        == DENSENET.torchvision.convert("121", state).keys()
    )
