"""Static batch norm: training leaves statistics unchanged, calibration measures them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.layers.basic import Norm, scale
from models.layers.batch_norm import calibrate, norms, set_norm
from models.menu import menu
from models.named_network import network
from models.submodel_building import build


def test_cumulative_mean_of_batch_means_and_unbiased_variances():
    """Batches (1, 3) and (5, 9): means 2 and 7, variances 2 and 8."""
    net = nn.Sequential(nn.BatchNorm1d(1))
    stats, batches = calibrate(net, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [9.0]])])
    assert batches == 2
    assert stats["0.running_mean"].tolist() == [4.5]
    assert stats["0.running_var"].tolist() == [5.0]
    assert net.training
    assert net[0].momentum == 0.1


def test_calibrating_again_forgets_the_first_time():
    net = nn.Sequential(nn.BatchNorm1d(1))
    calibrate(net, [torch.full((4, 1), 100.0)])
    assert calibrate(net, [torch.tensor([[1.0], [3.0]])])[0]["0.running_mean"].tolist() == [2.0]


def test_a_short_batch_counts_as_much_as_a_long_one():
    stats, _ = calibrate(nn.Sequential(nn.BatchNorm1d(1)), [torch.zeros(8, 1), torch.ones(2, 1)])
    assert stats["0.running_mean"].tolist() == [0.5]


def test_static_training_leaves_the_statistics_and_tracked_moves_them():
    for mode, moved in (("static", False), ("tracked", True)):
        net = nn.Sequential(nn.BatchNorm1d(2))
        set_norm(net, mode)
        net(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert bool(net[0].running_mean.any()) is moved


def test_calibration_measures_the_norms_of_every_exit():
    """After one batch no norm has its initial mean 0 and variance 1."""
    (submodel,) = menu(network("resnet-small", (1, 8, 8), 10), (0.5,), (2,), ("exits-conv",))
    stats, _ = calibrate(
        build(submodel), [torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))]
    )
    assert any(name.startswith("exits.0.") for name in stats)
    assert all(bool((value != name.endswith("var")).all()) for name, value in stats.items())


def test_calibration_switches_the_scaler_off():
    """Statistics are those of evaluation: with and without the scaler they are equal."""
    net = network("preresnet", (1, 8, 8), 10)
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (plain,), (scaled,) = menu(net, (0.5,), (1,)), menu(net, (0.5,), (1,), ("scaler",))
    nets = [build(plain).train(), build(scaled).train()]
    nets[1].load_state_dict(nets[0].state_dict())
    first, second = (calibrate(n, [x])[0] for n in nets)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_scaled_norm_trains_on_scaled_inputs_and_tracks_them_unscaled():
    """0 and 2 at a rate of 1/2 become 0 and 4: variance 4, plus eps 3. The tracked mean and
    unbiased variance of the inputs, 1 and 2, apply in evaluation.
    """
    norm = Norm(1, eps=3.0)
    norm.momentum = 1.0
    scale(norm, 0.5)
    x = torch.tensor([[0.0], [2.0]])
    torch.testing.assert_close(norm(x), torch.tensor([[-2.0], [2.0]]) / 7**0.5)
    assert (norm.running_mean.item(), norm.running_var.item()) == (1.0, 2.0)
    torch.testing.assert_close(norm.eval()(x), torch.tensor([[-1.0], [1.0]]) / 5**0.5)


def test_calibration_keeps_the_weights():
    net = build(menu(network("preresnet", (1, 8, 8), 10), (0.5,), (1,))[0])
    before = {name: value.clone() for name, value in net.named_parameters()}
    calibrate(net, [torch.randn(4, 1, 8, 8)])
    assert all(torch.equal(value, before[name]) for name, value in net.named_parameters())


def test_calibration_requires_a_batch():
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(nn.Sequential(nn.BatchNorm1d(1)), [])


def test_loaded_statistics_are_those_measured():
    """A network that loads another's statistics evaluates alike."""
    torch.manual_seed(0)
    first = build(menu(network("preresnet", (1, 8, 8), 10), (0.5,), (1,))[0])
    x = torch.randn(5, 1, 8, 8)
    stats, _ = calibrate(first, [x, x + 1])
    second = build(menu(network("preresnet", (1, 8, 8), 10), (0.5,), (1,))[0])
    second.load_state_dict(dict(first.named_parameters()), strict=False)
    second.load_state_dict(stats, strict=False)
    assert torch.equal(first.eval()(x), second.eval()(x))
    assert len(stats) == 2 * len(norms(first))
