"""Names of models, the data that they refuse, and a user's own family."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from models.cost import cost
from models.menu import menu
from models.named_network import check_flow, network
from models.submodel import Moments, Network, Submodel, scale_count
from models.submodel_building import build, find_labelled, full, shapes


def test_presets_by_name():
    assert network("preresnet", (1, 8, 8), 10).preset == "small"
    assert network("preresnet-18", (1, 8, 8), 10).preset == "18"
    assert full(network("preresnet-18", (1, 8, 8), 10)).mask == ((1, 1),) * 4


def test_sizes_may_be_numbers_of_numpy():
    check_flow(Network("preresnet", "small", (1, np.int64(8), 8), np.int64(10)))


@pytest.mark.parametrize("name", ["preresnt", "preresnet-19", "", "-", "resnt"])
def test_unknown_models_list_the_known(name):
    with pytest.raises(LookupError) as caught:
        network(name, (1, 8, 8), 10)
    assert caught.value.args[0] == name
    assert {"preresnet", "preresnet-small", "preresnet-18", "preresnet-fedfa"} <= set(
        caught.value.args[1]
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "mean", "std", "message"),
    [
        ((8, 8), 10, (0,), (1,), "3 axes"),
        ((0, 8, 8), 10, (0,), (1,), "at least 1"),
        ((), 10, (0,), (1,), "3 axes"),
        ((1, 8, 8), 1, (0,), (1,), "at least 2"),
        ((3, 8, 8), 10, (0, 0), (1,), "expected 1 or 3"),
        ((3, 8, 8), 10, (float("nan"),), (1,), "finite"),
        ((3, 8, 8), 10, (0,), (0,), "above 0"),
    ],
)
def test_invalid_networks_are_refused(inputs, outputs, mean, std, message):
    with pytest.raises(ValueError, match=message):
        network("preresnet", inputs, outputs, Moments(mean, std))


@pytest.mark.parametrize(
    ("target", "shift", "scale", "message"),
    [
        ("value", (1,), (), "expected both, or neither"),
        ("value", (1, 2), (1, 1), r"shift \(1.0, 2.0\); expected 1 finite numbers, or none"),
        ("value", (1,), (float("inf"),), "scale"),
        ("value", (1,), (0,), "above 0"),
        ("class", (1,), (1,), "expected none for target 'class'"),
    ],
)
def test_invalid_raw_units_are_refused(target, shift, scale, message):
    with pytest.raises(ValueError, match=message):
        network(
            "preresnet",
            (1, 8, 8),
            1 if target == "value" else 10,
            Moments(shift=shift, scale=scale),
            target=target,
        )


def test_a_network_of_values_keeps_their_units():
    made = network("preresnet", (1, 8, 8), 1, Moments(shift=(20,), scale=(5,)), target="value")
    assert (made.objective, made.shift, made.scale) == ("value", (20.0,), (5.0,))


@pytest.fixture
def own(monkeypatch):
    """Return a module `own_models` with a perceptron that scales in width."""
    module = ModuleType("own_models")

    def perceptron(submodel: Submodel) -> nn.Module:
        hidden = scale_count(submodel.width, 6)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(4, hidden),
            nn.ReLU(),
            nn.Linear(hidden, submodel.network.outputs),
        )

    module.perceptron = perceptron
    module.headless = lambda submodel: nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
    module.number = 3
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


def test_user_function_is_a_family(own):
    net = network("own_models:perceptron", (1, 2, 2), 3)
    small, large = menu(net, (0.5, 1), (1, 2))
    assert shapes(small) == {
        "net.1.weight": (3, 4),
        "net.1.bias": (3,),
        "net.3.weight": (3, 3),
        "net.3.bias": (3,),
    }
    assert find_labelled(large) == {"net.3.weight", "net.3.bias"}
    assert build(large)(torch.zeros(2, 1, 2, 2)).shape == (2, 3)
    assert cost(large).parameters == 6 * 4 + 6 + 3 * 6 + 3
    assert cost(large).macs == 6 * 4 + 3 * 6


def test_wrong_last_layer_is_refused_early(own):
    with pytest.raises(ValueError, match=r"shape \(2, 5\); expected .* \(2, 3\)"):
        network("own_models:headless", (1, 2, 2), 3)


@pytest.mark.parametrize(
    "name", ["own_models:absent", "own_models:number", "no_such_module:f", ":f", "own_models:"]
)
def test_unimportable_functions_are_refused(own, name):
    with pytest.raises(ValueError, match="model '"):
        network(name, (1, 2, 2), 3)
