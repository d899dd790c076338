"""Costs, compared with counts by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
from torch import nn

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.step_workload import work
from models.submodel_building import full


@pytest.fixture
def layers(monkeypatch):
    """Return two linear layers, 4 to 3 to 2, with a ReLU between."""
    module = ModuleType("two_layers")
    module.make = lambda submodel: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)
    )
    monkeypatch.setitem(sys.modules, "two_layers", module)
    return full(network("two_layers:make", (1, 2, 2), 2))


def test_two_layers_by_hand(layers):
    """15 and 8 parameters; 12 and 6 multiply-adds."""
    found = cost(layers, 10)
    assert (found.parameters, found.macs, found.bytes) == (23, 18, 92)
    # the gradient of each weight, and of the second layer's input
    assert found.training_macs == 18 + 12 + 2 * 6
    assert found.memory == 16_000_000 + work(layers, 10).live + 3 * 92, (
        "copies of the parameters beside what is alive; there is no convolution"
    )


@pytest.mark.parametrize(
    ("layer", "weights"),
    [
        (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), 6 * 2 * 9),
        (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), 4 * 9),
        (lambda: nn.Conv2d(4, 6, 3, padding=1), 6 * 4 * 9),
        (lambda: nn.ConvTranspose2d(4, 8, 3, padding=1, groups=2), 8 * 2 * 9),
    ],
)
def test_backward_costs_forward_twice_whatever_the_groups(layer, weights, monkeypatch):
    """At each of 25 positions each weight multiplies once forward and once for each gradient;
    the 1x1 convolution before has one gradient.
    """
    name = f"weights_{weights}"  # counts are cached by name
    module = ModuleType(name)
    module.make = lambda submodel: nn.Sequential(
        nn.Conv2d(1, 4, 1, bias=False),
        layer(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(layer().out_channels, 2),
    )
    monkeypatch.setitem(sys.modules, name, module)
    found = cost(full(network(f"{name}:make", (1, 5, 5), 2)))
    head = 2 * layer().out_channels
    assert found.macs == 25 * (4 + weights) + head
    assert found.training_macs == 2 * 25 * 4 + 3 * 25 * weights + 3 * head


@pytest.mark.parametrize(
    ("target", "model", "inputs", "first"),
    [("class", "vit-micro", (1, 8, 8), 16 * 4 * 32), ("token", "transformer-small", (8,), 0)],
)
def test_attention_costs_thrice_in_training(target, model, inputs, first):
    """Every product has two gradients, but the first layer's has one: an image needs none, and
    token ids are not multiplied.
    """
    found = cost(full(network(model, inputs, 10, target=target)))
    assert found.training_macs == 3 * found.macs - first


def test_only_memory_depends_on_the_batch():
    submodel = full(network("preresnet", (1, 8, 8), 10))
    one, many = cost(submodel, 1), cost(submodel, 64)
    assert many.memory > one.memory
    assert replace(one, batch=64) == many


def test_a_larger_submodel_costs_more_of_everything():
    small, large = menu(network("preresnet", (1, 8, 8), 10), (0.5, 1), (2,))
    a, b = cost(small, 8), cost(large, 8)
    assert a.parameters < b.parameters
    assert a.macs < b.macs
    assert a.memory < b.memory


def test_convolutions_by_hand():
    """The smallest digits network: stem 9 x 16 at 64 positions, and so on down to 64 x 10."""
    (submodel,) = menu(network("preresnet", (1, 8, 8), 10), (1,), (1,))
    first = 64 * (9 * 16 + 2 * 9 * 16 * 16)
    second = 16 * (9 * 16 * 32 + 9 * 32 * 32 + 16 * 32)
    third = 4 * (9 * 32 * 64 + 9 * 64 * 64 + 32 * 64)
    assert cost(submodel).macs == first + second + third + 64 * 10
