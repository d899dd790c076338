"""Separate layers for the inputs of a dense block compute the same as one layer over their
concatenation.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.layers.basic import scale
from models.layers.batch_norm import calibrate, norms, set_norm
from models.layers.densenet_layers import SeenConv, SeenNorm

CHANNELS, LAYERS, GROWTH = 3, 2, 4


def maps(seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, CHANNELS, 2, 2, generator=generator) + 1, [
        torch.randn(5, GROWTH, 2, 2, generator=generator) * 3 for _ in range(LAYERS)
    ]


def together(module: nn.Module, name: str) -> torch.Tensor:
    """Return the tensor of both parts, as one over all channels."""
    return torch.cat(
        [module.inputs.get_parameter(name), module.grown.get_parameter(name).flatten(-2)], -1
    )


def statistics(norm: SeenNorm, name: str) -> torch.Tensor:
    return torch.cat([norm.inputs.get_buffer(name), norm.grown.get_buffer(name).flatten()])


class Apart(nn.Module):
    """A SeenNorm as a network of one batch, for calibration."""

    def __init__(self, norm: SeenNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return self.norm(
            x[:, :CHANNELS], [x[:, CHANNELS : CHANNELS + GROWTH], x[:, CHANNELS + GROWTH :]]
        )


@pytest.mark.parametrize("mode", ["tracked", "static"])
def test_the_norm_is_batch_norm_of_the_concatenation(mode):
    """In training and evaluation, with weights of its own per channel, and the same running
    statistics.
    """
    ours, plain = SeenNorm(CHANNELS, LAYERS, GROWTH), nn.BatchNorm2d(CHANNELS + LAYERS * GROWTH)
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    with torch.no_grad():
        plain.weight.copy_(together(ours, "weight"))
        plain.bias.copy_(together(ours, "bias"))
    for net in (ours, plain):
        set_norm(net, mode)
    x, grown = maps()
    for step in range(3):
        ours.train(step < 2), plain.train(step < 2)
        torch.testing.assert_close(
            torch.cat(ours(x, grown), 1), torch.relu(plain(torch.cat([x, *grown], 1)))
        )
        torch.testing.assert_close(statistics(ours, "running_mean"), plain.running_mean)
        torch.testing.assert_close(statistics(ours, "running_var"), plain.running_var)
    assert bool(plain.running_mean.any()) is (mode == "tracked")


def test_calibration_measures_the_statistics_of_the_concatenation():
    """Over two batches, from where they stood before, with the shape of the parameters."""
    ours, plain = (
        Apart(SeenNorm(CHANNELS, LAYERS, GROWTH)),
        nn.Sequential(nn.BatchNorm2d(CHANNELS + LAYERS * GROWTH)),
    )
    batches = [torch.cat([x, *grown], 1) for x, grown in (maps(0), maps(1))]
    ours(batches[0])  # what calibration must forget
    found, expected = calibrate(ours, batches)[0], calibrate(plain, batches)[0]
    assert found["norm.grown.running_var"].shape == (LAYERS, GROWTH)
    for key in ("running_mean", "running_var"):
        torch.testing.assert_close(statistics(ours.norm, key), expected[f"0.{key}"])


def test_the_convolution_is_one_of_the_concatenation():
    ours = SeenConv(CHANNELS, LAYERS, GROWTH, 6, bias=True)
    x, grown = maps()
    weight = torch.cat([ours.inputs.weight, ours.grown.weight.flatten(1)[..., None, None]], 1)
    expected = nn.functional.conv2d(torch.cat([x, *grown], 1), weight, ours.inputs.bias)
    torch.testing.assert_close(ours([x, torch.cat(grown, 1)]), expected)


def test_before_anything_grew_there_are_only_inputs():
    norm, conv = SeenNorm(CHANNELS, 0, GROWTH), SeenConv(CHANNELS, 0, GROWTH, 6)
    assert [name for name, _ in conv.named_parameters()] == ["inputs.weight"]
    assert list(norms(norm)) == ["inputs"]
    assert conv(norm(maps()[0], [])).shape == (5, 6, 2, 2)


def test_both_norms_have_a_place_for_the_scaler():
    norm = SeenNorm(CHANNELS, LAYERS, GROWTH)
    scale(norm, 0.5)
    assert [layer.scaler.rate for layer in norms(norm).values()] == [0.5, 0.5]


def test_the_start_depends_on_all_that_is_seen():
    """Spread sqrt(2 / (10 + 3 x 30)) for a convolution; up to 1 / sqrt(100) with a bias, which
    starts at 0.
    """
    torch.manual_seed(0)
    conv, linear = SeenConv(10, 3, 30, 200), SeenConv(10, 3, 30, 200, bias=True)
    for part in (conv.inputs, conv.grown):
        assert part.weight.std().item() == pytest.approx(0.02**0.5, rel=0.05)
    for part in (linear.inputs, linear.grown):
        assert 0.099 < part.weight.abs().max().item() <= 0.1
    assert not linear.inputs.bias.any()
