"""Networks whose narrow tensors are several pieces of the whole: concatenated channels and the
heads of attention.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from models.slicing import corners, extract
from models.submodel import Submodel
from models.submodel_building import build, initial, pieces, shapes, statistics
from tests.support.user_networks import Named, at, run_passes, sizes


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu()
        return self.head(self.norm(torch.cat([a, self.b(a)], 1)).mean((2, 3)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Two heads of 4 channels, with sizes read from the shape, as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (
            f(x).view(n, t, self.heads, d // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        x = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.out(x.transpose(1, 2).reshape(n, t, d))  # type: ignore[no-any-return]


class Fused(nn.Module):
    """As timm does it: one layer for queries, keys and values, sizes from attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.channels = 2, 4
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, self.channels).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        return self.out(x)  # type: ignore[no-any-return]


class Reader(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.into, self.block, self.head = nn.Linear(8, 8), block(), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x[:, 0])
        return self.head((x + self.block(x)).mean(1))  # type: ignore[no-any-return]


def extract_initial(submodel: Submodel) -> dict[str, Tensor]:
    whole = initial(submodel.network, 0)
    local = shapes(submodel) | statistics(submodel)
    known = {name: tuple(value.shape) for name, value in whole.items()}
    return extract(whole, corners(known, submodel, local))


@pytest.mark.parametrize("block", [Attention, Fused])
def test_every_head_keeps_its_leading_channels(named: Named, block: type[nn.Module]) -> None:
    """Of the heads 0-3 and 4-7 half the width keeps 0-1 and 4-5, also in the residual stream."""
    submodel = at(named(lambda: Reader(block)), 0.5)
    assert pieces(submodel)["net.block.out.weight"][1] == ((0, 2), (4, 6))
    if block is Fused:
        heads = tuple((start, start + 2) for start in range(0, 24, 4))
        assert pieces(submodel)["net.block.qkv.weight"][0] == heads
    assert run_passes(submodel).shape == (3, 10)


def test_concatenated_channels_keep_the_leading_part_of_each(named: Named) -> None:
    made = named(Concatenated)
    assert sizes(made) == {
        "a.weight": (2, 1, 3, 3),
        "b.weight": (3, 2, 3, 3),
        "norm.weight": (5,),
        "head.weight": (10, 5),
    }
    assert pieces(at(made, 0.5))["net.head.weight"] == (((0, 10),), ((0, 2), (4, 7)))


@pytest.mark.parametrize("function", [Concatenated, lambda: Reader(Attention)])
def test_plan_and_device_cut_the_same_entries(named: Named, function: object) -> None:
    submodel = at(named(function), 0.5)  # type: ignore[arg-type]
    torch.manual_seed(0)
    built, planned = build(submodel).state_dict(), extract_initial(submodel)
    assert planned.keys() <= built.keys()
    assert all(torch.equal(value, built[name]) for name, value in planned.items())


@pytest.mark.parametrize("name", ["fedrolex", "fjord"])
def test_methods_that_roll_or_nest_corners_refuse_pieces(named: Named, name: str) -> None:
    chosen = find_method(name)
    settings = configure(chosen, {"widths": (0.5, 1.0)})
    menu = chosen.menu(named(Concatenated), settings)
    with pytest.raises(ConfigError, match="concatenated"):
        list(chosen.inactive(menu, settings))
