"""A network that is reused starts each task as a new one would."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from federated.device.trainers import reusable_networks
from federated.device.trainers.reusable_networks import ReusableNetworks
from models.layers.batch_norm import norms
from models.submodel import Network, Submodel
from models.submodel_building import build, full

RESNET = full(Network("resnet", "18", (3, 8, 8), 10))
SMALL = replace(RESNET, width=0.0625)


class Remembering(nn.Module):
    """A network with state outside its tensors."""

    def __init__(self, memory: object) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.memory = memory


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks that were built."""
    found: list[nn.Module] = []

    def record(submodel: Submodel, seed: int) -> nn.Module:
        found.append(build(submodel, seed=seed))
        return found[-1]

    monkeypatch.setattr(reusable_networks, "build", record)
    return found


def test_a_reused_network_has_its_initial_values_and_attributes(built: list[nn.Module]) -> None:
    networks, expected = ReusableNetworks(), build(SMALL, seed=1)
    with networks.borrow(SMALL, 1) as (net, tensors):
        used = net
        norm = next(iter(norms(net).values()))
        momentum, norm.momentum, norm.added = norm.momentum, 0.7, 1
        net.eval()
        weight = next(net.parameters())
        weight.grad = torch.ones_like(weight)
        weight.requires_grad_(False)
        for value in tensors.values():
            value.zero_()
    with networks.borrow(SMALL, 1) as (net, tensors):
        assert net is used
        assert len(built) == 1
        assert net.training
        assert weight.grad is None
        assert weight.requires_grad
        assert norm.momentum == momentum
        assert not hasattr(norm, "added")
        for name, value in expected.state_dict().items():
            assert torch.equal(tensors[name], value), name


def test_a_network_in_use_is_not_lent_again(built: list[nn.Module]) -> None:
    networks = ReusableNetworks()
    with networks.borrow(SMALL, 1) as (first, _), networks.borrow(SMALL, 1) as (second, _):
        assert first is not second


def test_a_network_is_reused_only_for_its_submodel_and_seed(built: list[nn.Module]) -> None:
    networks = ReusableNetworks()
    for submodel, seed in ((SMALL, 1), (SMALL, 2), (replace(SMALL, width=0.125), 1)):
        with networks.borrow(submodel, seed):
            pass
    assert len(built) == 3


def test_a_task_that_fails_leaves_no_network_behind(built: list[nn.Module]) -> None:
    networks = ReusableNetworks()
    with pytest.raises(KeyError), networks.borrow(SMALL, 1):
        raise KeyError
    with networks.borrow(SMALL, 1):
        assert len(built) == 2


def test_a_large_network_is_not_kept(built: list[nn.Module]) -> None:
    networks = ReusableNetworks()
    for _ in range(2):
        with networks.borrow(RESNET, 1):
            pass
    assert len(built) == 2


@pytest.mark.parametrize(
    ("memory", "kept"),
    [(3, True), ([1, 2], True), ([[1]], False), ({}, True), (torch.zeros(1), False)],
    ids=["number", "list", "nested list", "dict", "tensor"],
)
def test_a_network_with_state_that_cannot_be_restored_is_not_kept(
    memory: object, kept: bool
) -> None:
    assert reusable_networks.can_restore(Remembering(memory)) == kept


def test_a_list_of_a_network_has_its_initial_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reusable_networks, "build", lambda *_, **__: Remembering([1]))
    networks = ReusableNetworks()
    for _ in range(2):
        with networks.borrow(SMALL, 1) as (net, _):
            assert net.memory == [1]
            net.memory.append(2)
