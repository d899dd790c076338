"""Initial weights follow a seed, and a build on the meta device allocates nothing."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.named_network import network
from models.submodel import scale_count
from models.submodel_building import build, full, initial, shapes


def test_kept_channels_round_up_after_rounding_noise():
    """0.07 of 100 is 7 though the product is 7.000000000000001."""
    assert scale_count(0.07, 100) == 7
    assert scale_count(0.5, 5) == 3


def test_initial_weights_depend_only_on_the_seed():
    net = network("preresnet", (1, 8, 8), 10)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = initial(net, 1), initial(net, 1), initial(net, 2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])
    assert shapes(full(net)).keys() < first.keys()
    assert not first["stem.weight"].requires_grad


def test_a_meta_build_allocates_nothing():
    assert {
        p.device.type
        for p in build(full(network("preresnet-fedfa", (3, 32, 32), 10)), "meta").parameters()
    } == {"meta"}


class Operations(TorchDispatchMode):
    """Note the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "draws"), [("meta", False), ("cpu", True)])
def test_a_meta_build_draws_no_numbers(device, draws):
    submodel = full(network("resnet-small", (1, 8, 8), 10))
    with Operations() as seen:
        net = build(submodel, device)
    assert bool(seen.names & {"normal_", "normal", "uniform_", "fill_"}) == draws
    assert {p.device.type for p in net.parameters()} == {device}
