"""The work of a pass, compared with counts by hand."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.step_workload import LANES, work
from models.submodel_building import full
from tests.support.smallest_networks import SMALL, small


@pytest.fixture
def own(monkeypatch):
    """Make a submodel of layers under its own name, since counts are cached by name."""

    def make(name, layers, inputs, outputs):
        module = ModuleType(name)
        module.make = lambda submodel: layers()
        monkeypatch.setitem(sys.modules, name, module)
        return full(network(f"{name}:make", inputs, outputs))

    return make


class Attends(nn.Module):
    """Each position of [N, heads, T, features] attends to all."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_an_inference_by_hand(own):
    """For 2 examples of 4 numbers: subtract the mean, divide by the deviation, then one product
    that reads 3 biases and 12 weights, and writes 6.
    """
    found = work(own("one_linear", lambda: nn.Linear(4, 3), (4,), 3), 2, training=False)
    assert (found.calls, found.moved) == (3, 4 * (2 * (8 + 1 + 8) + (3 + 8 + 12 + 6)))
    assert found.macs == (2 * 4 * 4, 2 * 8 * 8, 2 * 16 * 16)
    assert found.live == 4 * (3 * 8 + 2 + 3 + 12), (
        "all at the division: three of 8, mean and deviation, bias and weights"
    )
    assert found.span == 0


@pytest.mark.parametrize(
    ("name", "layer", "weights"),
    [
        # 4 inputs are few, and stay 4
        ("dense", lambda: nn.Conv2d(4, 20, 3, padding=1, bias=False), (4 * 20, 4 * 24, 4 * 32)),
        (
            "transposed",
            lambda: nn.ConvTranspose2d(4, 20, 3, padding=1, bias=False),
            (4 * 20, 4 * 24, 4 * 32),
        ),
        # each output sees one input
        ("grouped", lambda: nn.Conv2d(4, 20, 3, padding=1, groups=4, bias=False), (20, 20, 20)),
    ],
)
def test_channels_are_rounded_up_unless_grouped(name, layer, weights, own):
    """At 25 positions of 2 examples: forward once and backward twice; the 1x1 convolution before
    it needs no gradient of its input.
    """
    submodel = own(
        name,
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 1, bias=False), layer(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        (4, 5, 5),
        20,
    )
    assert work(submodel, 2, training=False).macs == tuple(50 * (16 + 9 * n) for n in weights)
    assert work(submodel, 2).macs == tuple(50 * (2 * 16 + 3 * 9 * n) for n in weights)


def test_attention_holds_no_scores(own):
    """2 heads of 100 positions would have 20 000 scores; held are examples, inputs and outputs
    of 800, 200 sums, mean and deviation.
    """
    submodel = own(
        "attends",
        lambda: nn.Sequential(nn.Unflatten(1, (2, 100, 4)), Attends(), nn.Flatten()),
        (800,),
        800,
    )
    found = work(submodel, 1, training=False)
    assert found.live == 4 * (3 * 800 + 200 + 2)
    assert found.macs == tuple(2 * 2 * 100 * 100 * n for n in LANES)


def test_a_step_holds_what_backward_needs_and_the_gradients(own):
    """For a linear layer of 1000 inputs and 500 outputs and 4 examples at least inputs, weights,
    and finally the weights' gradient.
    """
    found = work(own("wide", lambda: nn.Linear(1000, 500, bias=False), (1000,), 500), 4)
    assert 4 * (4 * 1000 + 2 * 500_000) <= found.live <= 4 * (4 * 1000 + 2 * 500_000 + 8 * 4 * 500)


@pytest.mark.parametrize("family", sorted(SMALL))
def test_larger_networks_of_every_family_cost_more(family):
    made = small(family)
    narrow, whole = menu(made, (0.25,), (1,))[0], full(made)
    for training in (True, False):
        a, b, c = (
            work(narrow, 8, training=training),
            work(whole, 8, training=training),
            work(whole, 16, training=training),
        )
        assert a.macs <= b.macs < c.macs
        assert a.moved < b.moved < c.moved
        assert 0 < a.calls <= b.calls == c.calls
        assert a.live < b.live < c.live
    exact = cost(whole).training_macs * 8
    assert exact <= work(whole, 8).macs[0] <= 2 * exact, (
        "what fills vectors comes on top of the multiply-adds"
    )
