"""The pre-activation ResNet: published counts, names, and the tensors of submodels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.cost import cost
from models.layers.basic import Scaler, Standardise
from models.layers.batch_norm import norms
from models.menu import menu
from models.named_network import network
from models.submodel import Moments
from models.submodel_building import address, build, find_labelled, full, shapes, statistics
from tests.support.published_network_sizes import read_published_counts

CIFAR, DIGITS = (3, 32, 32), (1, 8, 8)


def counts(preset: str, width: float, depths: int | tuple[int, ...]) -> tuple[int, int]:
    (submodel,) = menu(network(f"preresnet-{preset}", CIFAR, 10), (width,), (depths,))
    return cost(submodel).parameters, cost(submodel).macs


@pytest.mark.parametrize(
    ("key", "rate", "parameters", "macs"),
    [
        ("a(1)", 1, 11_172_170, 555_422_720),
        ("b(0.5)", 0.5, 2_796_714, 139_299_328),
        ("c(0.25)", 0.25, 701_018, 35_046_656),
        ("d(0.125)", 0.125, 176_178, 8_872_576),
        ("e(0.0625)", 0.0625, 44_510, 2_273_600),
    ],
)
def test_counts_of_heterofl(key, rate, parameters, macs):
    """HeteroFL's five rates have the parameters and multiply-adds of the authors' network."""
    assert counts("18", rate, 2) == (parameters, macs)
    assert counts("18", rate, 2) == read_published_counts(f"HeteroFL/PreResNet18_{key}")


@pytest.mark.parametrize(
    ("preset", "width", "depths", "parameters", "macs"),
    [
        ("small", 1, 3, 272_282, 40_813_184),
        ("fedfa", 0.75, (2, 2, 3, 3), 9_607_162, 397_692_672),
        ("fedfa", 1, 4, 23_713_610, 1_159_402_496),
    ],
)
def test_counts_of_the_fedfa_presets(preset, width, depths, parameters, macs):
    assert counts(preset, width, depths) == (parameters, macs)


@pytest.mark.parametrize("width", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("depths", [(2, 2, 2, 2), (2, 2, 3, 3), (3, 3, 3, 3), (4, 4, 4, 4)])
def test_published_counts_of_fedfa(width, depths):
    """The presets for FedFA have the published sizes, also for different depths per section."""
    assert counts("fedfa", width, depths) == read_published_counts(
        f"FedFA-proposal/PreResNet d={depths} w={width}"
    )


@pytest.mark.parametrize("width", [0.5, 1.0])
@pytest.mark.parametrize("depths", [(2, 2, 2), (3, 3, 3), (4, 4, 4)])
def test_published_counts_of_the_small_preset(width, depths):
    assert counts("small", width, depths) == read_published_counts(
        f"FedFA-proposal/PreResNet-tiny d={depths} w={width}"
    )


def test_every_submodel_is_a_corner():
    """A submodel's tensor names exist in the whole network, and no axis is longer."""
    net = network("preresnet", DIGITS, 10)
    whole = shapes(full(net))
    for submodel in menu(net, (0.03, 0.5, 0.75, 1), (1, 2, 3, 4)):
        for name, shape in shapes(submodel).items():
            assert len(shape) == len(whole[name])
            assert all(n <= m for n, m in zip(shape, whole[name], strict=True)), name


def test_blocks_keep_their_index():
    """A mask that skips block 1 keeps block 2 under its own name, and the network runs."""
    net = network("preresnet", DIGITS, 10)
    skipping = replace(full(net), mask=((1, 0, 1, 0), (1, 0, 0, 0), (1, 1, 0, 0)))
    kept = {address(net, name)[:2] for name in shapes(skipping) if address(net, name)}
    assert kept == {(0, 0), (0, 2), (1, 0), (2, 0), (2, 1)}
    assert build(skipping)(torch.zeros(2, *DIGITS)).shape == (2, 10)


@pytest.mark.parametrize(
    "mask", [((0, 1, 1, 1), (1,) * 4, (1,) * 4), ((1, 1), (1,) * 4, (1,) * 4), ((1,) * 4,)]
)
def test_invalid_masks_are_refused(mask):
    """A mask must fit the preset and keep each first block."""
    with pytest.raises(ValueError, match=r"first block|expected blocks"):
        build(replace(full(network("preresnet", DIGITS, 10)), mask=mask))


def test_resolution_halves_between_sections():
    """Digits go 8, 8, 4, 2; the width grows 16, 32, 64."""
    net = build(full(network("preresnet", DIGITS, 10)))
    seen = []
    for section in net.sections:
        section["3"].register_forward_hook(
            lambda module, args, out: seen.append(tuple(out.shape[1:]))
        )
    net(torch.zeros(2, *DIGITS))
    assert seen == [(16, 8, 8), (32, 4, 4), (64, 2, 2)]


def test_raw_input():
    """The network standardises raw input itself, uint8 or float, with constants outside its
    state.
    """
    net = build(full(network("preresnet", (3, 4, 4), 10, Moments((1, 2, 3), (2, 4, 8))))).eval()
    x = torch.tensor([3, 6, 11], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    assert torch.equal(net.standardise(x), torch.ones(2, 3, 4, 4))
    assert torch.equal(net(x), net(x.float()))
    assert not [name for name in net.state_dict() if "standardise" in name]


def test_one_mean_for_all_channels():
    assert torch.equal(
        Standardise((4.0,), (2.0,), 3)(torch.full((1, 3, 1, 1), 8.0)), torch.full((1, 3, 1, 1), 2.0)
    )


def test_scaler_sits_before_every_norm():
    """With the feature, each norm trains as if its input were divided by the rate; evaluation is
    unchanged.
    """
    (plain,) = menu(network("preresnet", DIGITS, 10), (0.5,), (1,))
    (scaled,) = menu(plain.network, (0.5,), (1,), ("scaler",))
    assert scaled.name == "w0.5-d1.1.1-scaler"
    assert shapes(scaled) == shapes(plain)
    net = build(scaled)
    assert len(norms(net)) == 7
    assert all(layer.scaler.rate == 0.5 for layer in norms(net).values())
    assert {layer.scaler.scale_eps(layer.eps) for layer in norms(net.train()).values()} == {0.25e-5}
    assert {layer.scaler.scale_eps(layer.eps) for layer in norms(net.eval()).values()} == {1e-5}


def test_a_scaler_that_is_always_on_divides_in_evaluation_too():
    """For inputs as small as a norm's eps the outputs differ from the plain network's, and agree
    in both modes if the running statistics are the batch's.
    """
    (scaled,) = menu(network("preresnet", DIGITS, 10), (0.5,), (1,), ("scaler-always",))
    net = build(scaled)
    assert {layer.scaler.scale_eps(layer.eps) for layer in norms(net.eval()).values()} == {0.25e-5}
    norm, x = (
        net.norm.eval(),
        torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 32, 1, 1) * 1e-3,
    )
    norm.running_mean.zero_()
    norm.running_var.fill_(1e-6)
    torch.testing.assert_close(norm(x), x / (1e-6 + 0.25e-5) ** 0.5)
    assert torch.equal(Scaler(0.5, always=True).eval()(x), 2 * x)
    assert torch.equal(Scaler(0.5).eval()(x), x)


def test_exit_has_its_own_norm():
    """A block's output is a sum without activation: the exit reads relu(norm(sum))."""
    torch.manual_seed(0)
    net, x = (
        build(full(network("preresnet", DIGITS, 10), ("exits",))).eval(),
        torch.rand(2, *DIGITS),
    )
    assert net.norms.keys() == {"0", "1"}
    assert [net.norms[index].num_features for index in ("0", "1")] == [16, 32]
    torch.nn.init.constant_(net.norms["0"].bias, 0.5)
    feature = net.features_before_exits(x)[0]
    assert feature.min() < 0
    assert torch.equal(net.exits(x)[0], net.exits["0"](F.relu(net.norms["0"](feature))))


def test_a_section_begins_with_its_first_block_up_to_the_last_exit():
    whole = full(network("preresnet", DIGITS, 10), ("exits",))
    assert len(build(replace(whole, mask=((1,) * 4, (1, 0, 0, 1), (0,) * 4))).sections[2]) == 0
    with pytest.raises(ValueError, match="drops the first block"):
        build(replace(whole, mask=((1,) * 4, (0, 1, 1, 1), (0,) * 4)))


def test_initial_values():
    """Batch norm starts at 1 and 0, the linear's bias at 0."""
    net = build(full(network("preresnet", DIGITS, 10)))
    assert all(bool((m.weight == 1).all() and (m.bias == 0).all()) for m in norms(net).values())
    assert not net.linear.bias.any()


def test_labelled_tensors_have_the_classes_first():
    submodel = full(network("preresnet", DIGITS, 7))
    assert {shapes(submodel)[name][0] for name in find_labelled(submodel)} == {7}
    assert find_labelled(submodel) == {"linear.weight", "linear.bias"}


def test_statistics_of_every_norm():
    """Two norms per block and the last one, mean and variance each, without counters."""
    (submodel,) = menu(network("preresnet", DIGITS, 10), (1,), (2,))
    assert len(statistics(submodel)) == (2 * 6 + 1) * 2
    assert not any("num_batches" in name for name in statistics(submodel))


def test_parameters_of_a_conv_by_hand():
    (submodel,) = menu(network("preresnet", DIGITS, 10), (0.5,), (1,))
    assert shapes(submodel)["sections.1.0.conv1.weight"] == (16, 8, 3, 3)
    assert shapes(submodel)["sections.1.0.shortcut.weight"] == (16, 8, 1, 1)
    assert cost(submodel).bytes == 4 * sum(map(math.prod, shapes(submodel).values()))


def test_a_step_multiplies_what_the_convolutions_of_a_block_add():
    """At 1 the network is as without steps; at 0 a block is its shortcut."""
    made = network("preresnet", DIGITS, 10)
    plain, stepped = build(full(made)).eval(), build(full(made, ("steps",))).eval()
    own = stepped.load_state_dict(plain.state_dict(), strict=False)
    assert len(own.missing_keys) == 12
    assert all(name.endswith(".step") for name in own.missing_keys)
    x = torch.rand(2, *DIGITS)
    assert torch.equal(stepped(x), plain(x))
    first, second = stepped.sections[1]["0"], stepped.sections[1]["1"]
    x = torch.rand(2, 16, 8, 8)
    added = first(x) - first.shortcut(F.relu(first.norm1(x)))
    with torch.no_grad():
        first.step.fill_(2.0)
        second.step.fill_(0.0)
    torch.testing.assert_close(first(x) - first.shortcut(F.relu(first.norm1(x))), 2 * added)
    h = first(x)
    assert torch.equal(second(h), h)
