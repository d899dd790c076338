"""A linear layer over a flattened map: its outputs, and cutting by channels."""

from __future__ import annotations

import pytest
import torch

from models.layers.basic import Flat, Linear, scale, stack


def test_it_is_a_linear_layer_of_the_flattened_map():
    layer, x = Flat(3, 4, 5), torch.randn(2, 3, 2, 2)
    assert layer.weight.shape == (5, 3, 4)
    expected = torch.nn.functional.linear(x.flatten(1), layer.weight.reshape(5, 12), layer.bias)
    assert torch.equal(layer(x), expected)


def test_the_corner_of_its_weight_reads_the_first_channel():
    """Two positions of one channel, 3 and 4, times the first of 1, 2 and 10, 20."""
    wide, narrow = Flat(2, 2, 1), Flat(1, 2, 1)
    with torch.no_grad():
        wide.weight.copy_(torch.tensor([[[1.0, 2.0], [10.0, 20.0]]]))
        narrow.weight.copy_(wide.weight[:, :1])
        narrow.bias.zero_()
        assert narrow(torch.tensor([[[3.0, 4.0]]])).item() == 11


def test_a_stack_reads_the_map_first_and_then_what_came_before():
    layers = stack(2, 9, [7, 6, 5])
    assert [type(layer) for layer in layers] == [Flat, Linear, Linear]
    assert [tuple(layer.weight.shape) for layer in layers] == [(7, 2, 9), (6, 7), (5, 6)]
    assert len(stack(2, 9, [])) == 0


def test_a_scaled_layer_is_divided_by_the_rate_in_training_only():
    layers, x = stack(1, 1, [3]), torch.randn(2, 1, 1, 1)
    scale(layers, 0.5)
    trained, evaluated = layers.train()[0](x), layers.eval()[0](x)
    assert torch.equal(trained, evaluated * 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_starts_as_a_linear_layer_does(seed):
    torch.manual_seed(seed)
    flat = Flat(3, 4, 5)
    torch.manual_seed(seed)
    assert torch.equal(flat.weight.flatten(1), torch.nn.Linear(12, 5).weight)
