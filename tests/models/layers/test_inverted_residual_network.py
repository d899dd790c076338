"""Inverted residuals: residual, dropping, squeezing and steps; names that do not depend on
width.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from models.layers.basic import Scaler, scale
from models.layers.inverted_residual_network import (
    Block,
    Drop,
    Place,
    Section,
    Squeeze,
    Style,
    rename_tensors,
)
from models.menu import menu
from models.named_network import network
from models.submodel_building import address, build, find_labelled, full, shapes

DIGITS = (1, 8, 8)
STYLE = Style(nn.ReLU6)


def block(
    section: Section, inputs: int, stride: int = 1, width: float = 1.0, *, steps: bool = False
) -> Block:
    return Block(section, Place(inputs, stride), width, STYLE, steps=steps).eval()


def test_a_block_adds_its_input_only_where_nothing_changes():
    """The whole network's channels decide: 9 and 10 both keep 1 at 10 percent, and are still not
    added.
    """
    section = Section(6, 10, 1, 1)
    assert block(section, 10).adds
    assert not block(section, 10, stride=2).adds
    assert not block(section, 9, width=0.1).adds


def test_a_step_multiplies_what_a_block_adds():
    net = block(Section(2, 4, 1, 1), 4, steps=True)
    x = torch.rand(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one = net(x) - x
        net.step.fill_(3.0)
        assert torch.allclose(net(x) - x, 3 * one, atol=1e-6)
    assert block(Section(2, 5, 1, 1), 4, steps=True).step is None


def test_steps_are_where_blocks_add():
    """In sections of 3 blocks all but the first add; the section of a single block changes
    channels.
    """
    made = network("mobilenet", DIGITS, 10)
    names = {name for name in shapes(full(made, ("steps",))) if name.endswith(".step")}
    depths = (1, 2, 3, 4, 3, 3, 1)
    assert names == {
        f"sections.{s}.{b}.step" for s, depth in enumerate(depths) for b in range(1, depth)
    }


def test_a_fused_block_that_widens_nothing_is_one_convolution():
    assert [
        name for name, _ in block(Section(1, 4, 1, 1, fused=True), 4).residual.named_children()
    ] == ["expand"]
    assert [
        name for name, _ in block(Section(4, 4, 1, 1, fused=True), 4).residual.named_children()
    ] == ["expand", "project"]


def test_squeezing_weighs_each_channel():
    """Channels of mean 1 and 3: down to silu(1 + 3) = 4 sigmoid(4), up to that and its negative."""
    net = Squeeze(2, 1)
    with torch.no_grad():
        net.down.weight.fill_(1.0)
        net.up.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        out = net(torch.tensor([0.0, 2.0, 3.0, 3.0]).reshape(1, 2, 1, 2))
    high = torch.sigmoid(4 * torch.sigmoid(torch.tensor(4.0)))
    assert torch.allclose(
        out.flatten(), torch.stack([0 * high, 2 * high, 3 * (1 - high), 3 * (1 - high)])
    )


def test_squeeze_layers_have_scalers():
    net = Squeeze(4, 2)
    scale(net, 0.5)
    assert all(isinstance(layer.scaler, Scaler) for layer in (net.down, net.up))


def test_dropping_leaves_examples_out_and_scales_up_the_rest():
    """At 0.75 about a quarter of the examples stay, scaled by four; in evaluation all stay
    unchanged.
    """
    torch.manual_seed(0)
    net, x = Drop(0.75), torch.ones(1000, 2, 1, 1)
    out = net(x)
    assert set(out.flatten().tolist()) == {0.0, 4.0}
    assert torch.equal(out[:, 0], out[:, 1])
    assert float(out.mean()) == pytest.approx(1, abs=0.2)
    assert net.eval()(x) is x


def test_blocks_keep_their_index_and_each_first_one_stays():
    made = network("mobilenet-tiny", DIGITS, 10)
    skipping = replace(full(made), mask=((1,), (1, 0, 1), (1, 0, 0), (1, 1, 0)))
    assert {place[:2] for name in shapes(skipping) if (place := address(made, name))} == {
        (0, 0),
        (1, 0),
        (1, 2),
        (2, 0),
        (3, 0),
        (3, 1),
    }
    assert build(skipping).eval()(torch.zeros(2, *DIGITS)).shape == (2, 10)
    with pytest.raises(ValueError, match="first block"):
        build(replace(skipping, mask=((1,), (0, 1, 1), (1, 0, 0), (1, 1, 0))))


def test_resolution_halves_in_the_sections_that_say_so():
    net, seen = build(full(network("mobilenet-tiny", DIGITS, 10))).eval(), []
    for section in net.sections:
        section[0].register_forward_hook(
            lambda module, args, out: seen.append(tuple(out.shape[1:]))
        )
    net(torch.zeros(2, *DIGITS))
    assert seen == [(8, 8, 8), (16, 8, 8), (24, 4, 4), (32, 2, 2)]


def test_names_do_not_depend_on_width():
    """A width that keeps a single channel everywhere has all tensors of the whole network."""
    for model in ("mobilenet-tiny", "efficientnet-tiny"):
        made = network(model, DIGITS, 10)
        (narrowest,) = menu(made, (0.01,), (3,))
        assert shapes(narrowest).keys() == shapes(full(made)).keys()
        assert shapes(narrowest)["sections.1.0.residual.project.conv.weight"] == (1, 1, 1, 1)


def test_the_classifier_is_labelled():
    assert find_labelled(full(network("efficientnet-tiny", DIGITS, 10))) == {
        "linear.weight",
        "linear.bias",
    }


def test_torchvisions_counters_are_left_out_and_strangers_named():
    tensors = {"a.0.weight": torch.ones(1), "a.0.num_batches_tracked": torch.tensor(3)}
    assert rename_tensors(tensors, {"a.0": "stem"}) == {"stem.weight": torch.ones(1)}
    with pytest.raises(KeyError, match=r"b\.1\.weight"):
        rename_tensors({"b.1.weight": torch.ones(1)}, {"a.0": "stem"})
