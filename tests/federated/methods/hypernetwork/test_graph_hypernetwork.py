"""The hypernetwork: the weights that it generates, the inputs that they depend on, and its
gradient.
"""

from __future__ import annotations

import time

import pytest
import torch

from federated.methods.hypernetwork.graph_hypernetwork import (
    Encoder,
    Hypernetwork,
    Sweep,
    generate,
    make_layout,
    read_class_shares,
    read_layout,
)
from models.menu import menu
from models.named_network import network
from models.submodel_building import full, shapes
from tests.support.smallest_networks import small

NET = network("mlp", (6,), 3)
SIZES = menu(NET, (0.2, 1.0), (1, 2))
EVEN = torch.full((3,), 1 / 3)


def draw_parameters(sizes=SIZES, hidden=8, cap=65536, seed=0):
    torch.manual_seed(seed)
    return {
        name: value.detach()
        for name, value in Hypernetwork(make_layout(sizes, hidden, cap)).state_dict().items()
    }


def generate_weights(submodel, phi, present=None, classes=EVEN, dropout=0.0):
    return {
        name: value.detach()
        for name, value in generate(phi, submodel, present or {}, classes, dropout).items()
    }


@pytest.mark.parametrize("family", ["densenet", "lenet", "mobilenet", "transformer", "vit"])
def test_networks_of_any_form_are_made_whole(family):
    net = small(family)
    sizes = menu(net, (0.5, 1.0), (2,))
    phi = draw_parameters(sizes)
    for submodel in sizes:
        found = generate_weights(submodel, phi, classes=read_class_shares(None, net.outputs))
        assert {name: tuple(value.shape) for name, value in found.items()} == shapes(submodel)
        assert all(bool(value.isfinite().all()) for value in found.values())


def test_networks_that_share_nothing_come_of_one_hypernetwork():
    sizes = [full(network(name, (1, 16, 16), 3)) for name in ("lenet", "vgg", "resnet-small")]
    phi = draw_parameters(sizes)
    assert all(
        {name: tuple(value.shape) for name, value in generate_weights(s, phi).items()} == shapes(s)
        for s in sizes
    )


def test_the_layout_is_written_in_the_shapes():
    form = make_layout(SIZES, 8, 1000)
    assert read_layout(draw_parameters(cap=1000)) == form
    hidden, classes, decoders, heads = form
    assert (hidden, classes) == (8, 3)
    # of 64 x 64, at most 1000 numbers: 32 x 64, 32 x 32, 16 x 32
    assert dict(decoders)["linear_weight_2"] == (16, 32)
    assert dict(heads) == {
        "linear-weight-3x13": (3, 13),
        "linear-weight-3x64": (3, 64),
        "linear-bias-3": (3,),
    }


def test_a_tensor_beyond_the_cap_repeats():
    weight = generate_weights(SIZES[-1], draw_parameters(cap=1000))["sections.0.0.linear.weight"]
    rows, columns = dict(make_layout(SIZES, 8, 1000)[2])["linear_weight_2"]
    assert torch.equal(weight[:rows], weight[rows : 2 * rows])
    assert torch.equal(weight[:, :columns], weight[:, columns : 2 * columns])
    assert not torch.equal(weight[0], weight[1])


def test_classes_of_a_device_affect_only_its_classifier():
    phi = draw_parameters()
    one, other = (
        generate_weights(SIZES[-1], phi, classes=torch.tensor(classes))
        for classes in ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5])
    )
    assert {name for name in one if not torch.equal(one[name], other[name])} == {
        "linear.weight",
        "linear.bias",
    }


def test_present_weights_are_read():
    phi = draw_parameters()
    before = generate_weights(SIZES[-1], phi)
    after = generate_weights(SIZES[-1], phi, {name: value + 0.5 for name, value in before.items()})
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_dropout_draws_from_the_global_generator():
    phi = draw_parameters()
    present = generate_weights(SIZES[-1], phi)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(generate_weights(SIZES[-1], phi, present, dropout=0.5)["linear.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_norms_begin_near_one_and_never_turn_sign():
    found = generate_weights(SIZES[-1], draw_parameters())
    assert all(
        float(value.min()) > 0.5 and float(value.max()) < 1.5
        for name, value in found.items()
        if name.endswith("norm.weight")
    )


def test_the_gradient_is_that_of_finite_differences():
    """Along a random direction of phi, with present weights read."""
    phi = draw_parameters(SIZES[:1])
    present = generate_weights(SIZES[0], phi)
    generator = torch.Generator().manual_seed(1)
    direction = {name: torch.randn(value.shape, generator=generator) for name, value in phi.items()}
    toward = {
        name: torch.randn(shape, generator=generator) for name, shape in shapes(SIZES[0]).items()
    }

    def value(step):
        found = generate_weights(
            SIZES[0], {name: value + step * direction[name] for name, value in phi.items()}, present
        )
        return sum(float((found[name].double() * toward[name].double()).sum()) for name in found)

    leaves = {name: value.clone().requires_grad_() for name, value in phi.items()}
    found = generate(leaves, SIZES[0], present, EVEN)
    gradient = torch.autograd.grad(
        list(found.values()),
        list(leaves.values()),
        [toward[name] for name in found],
        materialize_grads=True,
    )
    slope = sum(
        float((g.double() * direction[name].double()).sum())
        for name, g in zip(leaves, gradient, strict=True)
    )
    assert slope == pytest.approx((value(1e-3) - value(-1e-3)) / 2e-3, rel=5e-3)


def test_a_sweep_goes_forward_and_back_and_takes_far_nodes_by_their_distance():
    """A chain of three, followed by hand."""
    torch.manual_seed(0)
    sweep, x = Sweep(4), torch.randn(3, 4)
    cell, near, far, none = sweep.cell, sweep.near, sweep.far, torch.zeros(4)
    a = cell(none, x[0])
    b = cell(near(a), x[1])
    c = cell(near(b) + far(a) / 2, x[2])
    c = cell(none, c)
    b = cell(near(c), b)
    a = cell(near(b) + far(c) / 2, a)
    torch.testing.assert_close(
        sweep(x, torch.tensor([[0, 0, 0], [1, 0, 0], [2, 1, 0]])), torch.stack((a, b, c))
    )


def test_the_encoder_takes_the_order_of_numbers_as_none():
    torch.manual_seed(0)
    encoder, values = Encoder(8), torch.randn(2, 16)
    torch.testing.assert_close(encoder(values, 0.0), encoder(values.flip(1), 0.0))
    assert not torch.allclose(encoder(values, 0.0)[0], encoder(values, 0.0)[1])


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        [0.5, 0.5],
        [0.5, 0.5, float("nan")],
        [2.0, 0.0, 0.0],
        [-0.1, 0.6, 0.5],
        ["a", "b", "c"],
        "abc",
        3,
    ],
)
def test_invalid_shares_of_classes_are_replaced_with_equal_shares(told):
    torch.testing.assert_close(read_class_shares(told, 3), EVEN)


def test_valid_shares_of_classes_are_used_unchanged():
    assert read_class_shares([0.25, 0.75, 0], 3).tolist() == [0.25, 0.75, 0.0]


def test_a_small_resnet_is_made_within_a_second():
    submodel = full(network("preresnet", (1, 8, 8), 10))
    phi = draw_parameters([submodel], hidden=32)
    generate_weights(submodel, phi, classes=read_class_shares(None, 10))
    start = time.process_time()
    generate_weights(submodel, phi, classes=read_class_shares(None, 10))
    assert time.process_time() - start < 1.0
