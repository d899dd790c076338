"""Branches of real layers: their kinds, merging without loss, and the effect of training on their
sum.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.cost import branchable_layers, cost
from models.layers.attention import Attention
from models.layers.basic import Flat
from models.layers.mergeable_branches import (
    Branch,
    available_branches,
    join,
    originals,
    split,
)
from models.named_network import network
from models.submodel_building import full

LAYERS = {
    "3x3": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 5, 5)),
    "3x3, strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 6, 6)),
    "3x3, grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 5, 5)),
    "3x3, depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 5, 5)),
    "5x5 without padding": (lambda: nn.Conv2d(1, 6, 5), (2, 1, 8, 8)),
    "3x3, dilated": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2), (2, 4, 6, 6)),
    "3x1": (lambda: nn.Conv2d(4, 6, (3, 1), padding=(1, 0)), (2, 4, 5, 5)),
    "4x4": (lambda: nn.Conv2d(4, 6, 4, stride=2, padding=1), (2, 4, 6, 6)),
    "1x1": (lambda: nn.Conv2d(4, 6, 1), (2, 4, 5, 5)),
    "patches": (lambda: nn.Conv2d(4, 6, 2, stride=2), (2, 4, 6, 6)),
    "of signals": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "linear": (lambda: nn.Linear(4, 6), (2, 3, 4)),
    "flat": (lambda: Flat(4, 9, 6), (2, 4, 3, 3)),
    "batch norm": (lambda: nn.BatchNorm2d(4), (5, 4, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (5, 3, 4)),
}


@pytest.mark.parametrize("init", ["normal", "zeros"])
@pytest.mark.parametrize("linear", ["copy", "low-rank"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_same_with_branches_and_without(name, linear, init):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    with torch.no_grad():
        # norms start at 1, which has no spread to draw from
        layer.weight.add_(0.3 * torch.randn_like(layer.weight))
    names, before, old = (
        {n for n, _ in layer.named_parameters()},
        layer(x),
        layer.weight.detach().clone(),
    )
    chosen = available_branches(layer, 5, linear=linear, rank=2)
    split(layer, chosen, init, torch.Generator().manual_seed(0))
    assert len(originals(layer)) == 1 + len(chosen) > 1
    assert (not torch.equal(originals(layer)[0][0], old)) == (init == "normal"), (
        "the origin gives what the new branches take"
    )
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-5)
    join(layer)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-5)
    assert {n for n, _ in layer.named_parameters()} == names
    assert type(layer) is type(make())
    assert len(originals(layer)) == 1


def test_the_axes_of_attention_may_have_branches():
    torch.manual_seed(0)
    net, x = Attention(8, 2, 4), torch.randn(2, 3, 8)
    before = net(x)
    for layer, linear in ((net.project, "copy"), (net.out, "low-rank")):
        split(
            layer,
            available_branches(layer, 2, linear=linear, rank=3),
            "normal",
            torch.Generator().manual_seed(0),
        )
    assert [tuple(p.shape) for p in originals(net.project)[1]] == [(3, 2, 4, 8)]
    assert [tuple(p.shape) for p in originals(net.out)[2]] == [(8, 3), (3, 8)]
    torch.testing.assert_close(net(x), before, rtol=0, atol=1e-5)


def test_a_large_kernel_has_each_smaller_one_once():
    shapes = [branch.shapes[0][2:] for branch in available_branches(nn.Conv2d(2, 3, 3), 9)]
    assert shapes == [(1, 1), (1, 3), (3, 1), (1, 1)]
    assert [branch.kind for branch in available_branches(nn.Conv2d(2, 3, 3), 9)] == [
        "kernel"
    ] * 3 + ["average"]
    assert [branch.shapes[0] for branch in available_branches(nn.Conv1d(2, 4, 5, groups=2), 9)] == [
        (4, 1, 1),
        (4, 1, 1),
    ]
    assert available_branches(nn.Conv2d(2, 3, 1), 2) == (Branch("kernel", ((3, 2, 1, 1),)),) * 2
    assert available_branches(nn.Linear(5, 3), 1, linear="low-rank", rank=8) == (
        Branch("low-rank", ((3, 3), (3, 5))),
    ), "no rank above the layer's"


def parallel(layer, x, weights):
    """Run the branches of a 3x3 convolution, padding 1, one by one as in the paper: each pads by
    half its own kernel.
    """
    origin, point, row, column, pooled = weights
    stride, groups = layer.stride, layer.groups
    outs = [
        F.conv2d(x, w, None, stride, [(k - 1) // 2 for k in w.shape[2:]], 1, groups)
        for w in (origin, point, row, column)
    ]
    return sum(outs) + F.avg_pool2d(F.conv2d(x, pooled, None, 1, 0, 1, groups), 3, stride, 1)


@pytest.mark.parametrize(("stride", "groups"), [((1, 1), 1), ((2, 2), 2)])
def test_merged_branches_give_what_branches_in_parallel_give_and_the_same_gradients(stride, groups):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, stride=stride, padding=1, groups=groups, bias=False)
    split(layer, available_branches(layer, 5), "normal", torch.Generator().manual_seed(0))
    x, weights = torch.randn(2, 4, 7, 7), [p for branch in originals(layer) for p in branch]
    out, apart = layer(x), parallel(layer, x, weights)
    torch.testing.assert_close(out, apart, rtol=0, atol=1e-5)
    together = torch.autograd.grad(out.square().sum(), weights)
    for ours, theirs in zip(
        together, torch.autograd.grad(apart.square().sum(), weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_one_step_scales_the_gradient_by_the_branches_at_each_place():
    """Lemma 2 with 3x3, 1x1, 1x3 and 3x1: a gradient of ones moves the centre by 4 lr, the cross by
    2 lr, the corners by lr.
    """
    layer = nn.Conv2d(1, 1, 3, bias=False)
    nn.init.ones_(layer.weight)
    split(layer, available_branches(layer, 3), "normal", torch.Generator().manual_seed(0))
    layer(torch.ones(1, 1, 3, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    join(layer)
    expected = torch.tensor([[0.9, 0.8, 0.9], [0.8, 0.6, 0.8], [0.9, 0.8, 0.9]])
    torch.testing.assert_close(layer.weight[0, 0].detach(), expected)


def test_new_branches_have_a_tenth_of_the_weights_spread():
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    spread = float(layer.weight.detach().std())
    split(
        layer,
        (*available_branches(layer, 1), *available_branches(layer, 1, linear="low-rank", rank=16)),
        "normal",
        torch.Generator().manual_seed(0),
    )
    _, (copy,), (first, second) = [[p.detach() for p in branch] for branch in originals(layer)]
    assert float(copy.std()) == pytest.approx(0.1 * spread, rel=0.05)
    assert float((first @ second).std()) == pytest.approx(0.1 * spread, rel=0.1)


def test_a_product_that_starts_at_zero_still_learns():
    layer = nn.Linear(4, 4)
    split(
        layer,
        available_branches(layer, 1, linear="low-rank", rank=2),
        "zeros",
        torch.Generator().manual_seed(0),
    )
    layer(torch.ones(1, 4)).sum().backward()
    first, second = originals(layer)[1]
    assert not first.any()
    assert second.any()
    assert first.grad.any()


# ---- networks ------------------------------------------------------------------------------------


def test_convolutions_have_branches_where_there_are_any_and_linears_elsewhere():
    images = branchable_layers(full(network("preresnet", (1, 8, 8), 10)), 3)
    assert list(images)[:3] == ["stem", "sections.0.0.conv1", "sections.0.0.conv2"]
    assert "linear" not in images
    assert not any("shortcut" in name for name in images)
    tokens = branchable_layers(full(network("vit-micro", (1, 8, 8), 10)), 3)
    assert [name for name in tokens if name.startswith("sections.0.0.")] == [
        f"sections.0.0.{name}"
        for name in ("attention.project", "attention.out", "feed.linear1", "feed.linear2")
    ]


def test_looking_for_layers_draws_no_random_number():
    submodel = full(network("vit-micro", (1, 8, 8), 7))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    branchable_layers(submodel, 2)
    assert torch.equal(torch.rand(1), expected)


def test_branches_cost_what_they_would_in_parallel():
    """One 1x1 branch beside each 3x3 is a ninth more; one copy beside each linear layer doubles it.
    Nothing more travels.
    """
    for model, inputs, least in (("preresnet", (1, 8, 8), 1.1), ("mlp", (6,), 2.0)):
        plain = full(network(model, inputs, 3))
        one, two, four = (cost(replace(plain, branches=count), 8) for count in (1, 2, 4))
        assert two.macs / one.macs == pytest.approx(least, rel=0.02)
        assert one.macs < two.macs < four.macs
        assert one.training_macs < two.training_macs < four.training_macs
        assert one.memory < two.memory < four.memory
        assert (one.parameters, one.bytes) == (four.parameters, four.bytes)


def test_a_layer_with_branches_costs_by_hand():
    """Linear layers, 6 to 64 and so on: each copy adds its layer's own multiply-adds, in training
    twice for the first, whose input needs no gradient, and thrice for the others.
    """
    plain = full(network("mlp", (6,), 3))
    one, three = cost(plain), cost(replace(plain, branches=3))
    rows = [6 * 64, 64 * 64, 64 * 64, 64 * 3]
    assert three.macs - one.macs == 2 * sum(rows)
    assert three.training_macs - one.training_macs == 2 * (2 * rows[0] + 3 * sum(rows[1:]))
