"""The perceptron: counts, depth, steps, inputs of any shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, shapes


def test_counts_by_hand():
    """13 inputs, 64 hidden, two blocks, 3 values; then half of it with one block."""
    made = network("mlp", (13,), 3, target="value")
    assert made.objective == "value"
    whole, (half,) = cost(full(made)), menu(made, (0.5,), (1,))
    assert (whole.parameters, whole.macs) == (
        13 * 64 + 128 + 2 * (64 * 64 + 128) + 65 * 3,
        13 * 64 + 2 * 64 * 64 + 64 * 3,
    )
    assert cost(half).parameters == 13 * 32 + 64 + 32 * 32 + 64 + 33 * 3


@pytest.mark.parametrize("inputs", [(5,), (3, 20), (1, 8, 8)])
def test_examples_of_any_axes_are_flattened(inputs):
    net = build(full(network("mlp", inputs, 4)))
    assert net(torch.zeros(2, *inputs)).shape == (2, 4)
    assert net.stem.weight.shape == (64, torch.Size(inputs).numel())


def test_any_block_may_be_dropped():
    made = network("mlp-large", (5,), 4)
    part = replace(full(made), mask=((0, 1, 0),))
    assert [name for name in shapes(part) if name.startswith("sections")] == [
        "sections.0.1.linear.weight",
        "sections.0.1.norm.weight",
        "sections.0.1.norm.bias",
    ]
    assert build(part)(torch.zeros(2, 5)).shape == (2, 4)


def test_a_step_of_zero_skips_its_block():
    """With steps 0 the blocks pass on the first layer's output; with steps 1 the network is the
    plain one.
    """
    made, x = network("mlp", (5,), 4), torch.randn(3, 5)
    torch.manual_seed(0)
    plain = build(full(made)).eval()
    stepped = build(full(made, ("steps",))).eval()
    stepped.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(stepped(x), plain(x))
    for block in stepped.sections[0]:
        torch.nn.init.zeros_(block.step)
    assert block.step.shape == (1,)
    assert torch.equal(stepped(x), plain.linear(torch.relu(plain.norm(plain.stem(x)))))


def test_it_does_not_learn_tokens():
    with pytest.raises(ValueError, match="learns classes or values"):
        network("mlp", (5,), 4, target="token")
