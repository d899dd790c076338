"""Decoders, and the shapes that their tensors take."""

from __future__ import annotations

import pytest
import torch

from federated.methods.hypernetwork.decoder import Decoder, bounding_shape, cap_shape, tile


def test_a_decoder_is_two_layers_whose_last_has_the_shape_of_what_it_makes():
    """hidden relu(2x, -x) of x = 3 is (6, 0), so every number is 6 w + b; a push of (0, 5) opens
    the second unit by 2.
    """
    decoder = Decoder(1, 2, (1, 2))
    with torch.no_grad():
        decoder.first.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        decoder.first.bias.zero_()
        decoder.weight.copy_(torch.tensor([[[1.0, 10.0], [-1.0, 10.0]]]))
        decoder.bias.copy_(torch.tensor([[0.5, 0.0]]))
    x = torch.tensor([[3.0], [0.0]])
    assert decoder(x).tolist() == [[[6.5, -6.0]], [[0.5, 0.0]]]
    assert decoder(x[:1], torch.tensor([0.0, 5.0])).tolist() == [[[26.5, 14.0]]]


def test_a_tile_repeats_in_some_axes_and_is_cut_in_others():
    value = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    assert tile(value, (3, 2)).tolist() == [[0, 1], [3, 4], [0, 1]]
    assert tile(value, (1, 4)).tolist() == [[0, 1, 2, 0]]


@pytest.mark.parametrize(
    ("shape", "most", "expected"),
    [
        ((64, 64, 3, 3), 65536, (64, 64, 3, 3)),
        ((64, 64, 3, 3), 10240, (32, 32, 3, 3)),
        ((5,), 2, (2,)),
        ((3, 2), 1, (1, 1)),
    ],
)
def test_the_longest_axis_is_halved_until_a_shape_fits(shape, most, expected):
    assert cap_shape(shape, most) == expected


def test_the_largest_of_shapes_holds_each():
    assert bounding_shape([(2, 9, 3), (4, 1, 3)]) == (4, 9, 3)
