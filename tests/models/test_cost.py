"""Costs, against counts by hand."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
from torch import nn

from models.cost import cost
from models.families import full, menu, network


@pytest.fixture
def layer(monkeypatch):
    """One linear layer of 4 inputs and 3 outputs, and a ReLU."""
    module = ModuleType("one_layer")
    module.make = lambda submodel: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU())
    monkeypatch.setitem(sys.modules, "one_layer", module)
    return full(network("one_layer:make", (1, 2, 2), 3))


def test_a_linear_layer_by_hand(layer):
    """12 weights and 3 biases; 12 multiply-adds; backward keeps the 4 inputs and the ReLU's 3 outputs."""
    found = cost(layer, 10)
    assert (found.parameters, found.macs, found.activations, found.bytes) == (15, 12, 7, 60)
    assert found.memory == math.ceil(1.4 * ((7 + 2 * 4) * 10 * 4 + 3 * 60))


def test_only_memory_depends_on_the_batch():
    submodel = full(network("preresnet", (1, 8, 8), 10))
    one, many = cost(submodel, 1), cost(submodel, 64)
    assert many.memory > one.memory
    assert (one.parameters, one.macs, one.activations, one.bytes) == (many.parameters, many.macs, many.activations, many.bytes)


def test_a_larger_submodel_costs_more_of_everything():
    small, large = menu(network("preresnet", (1, 8, 8), 10), (0.5, 1), (2,))
    a, b = cost(small, 8), cost(large, 8)
    assert a.parameters < b.parameters
    assert a.macs < b.macs
    assert a.activations < b.activations
    assert a.memory < b.memory


def test_convolutions_by_hand():
    """The smallest digits network: stem 9 x 16 at 64 positions, and so on down to 64 x 10."""
    (submodel,) = menu(network("preresnet", (1, 8, 8), 10), (1,), (1,))
    first = 64 * (9 * 16 + 2 * 9 * 16 * 16)
    second = 16 * (9 * 16 * 32 + 9 * 32 * 32 + 16 * 32)
    third = 4 * (9 * 32 * 64 + 9 * 64 * 64 + 32 * 64)
    assert cost(submodel).macs == first + second + third + 64 * 10
