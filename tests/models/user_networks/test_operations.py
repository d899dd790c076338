"""Networks as timm, torchvision and transformers write them: functional layers, grouped
convolutions, attention in one module, sizes from shapes and attributes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.slicing import as_slices, corners, extract
from models.submodel import Network, Submodel
from models.submodel_building import build, full, initial, shapes, statistics
from tests.support.user_networks import Named, at, run_passes, sizes


class Functional(nn.Module):
    """Layers whose forward pass calls torch.nn.functional, as timm's do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = BatchNorm(8)
        self.same = Same(8, 8, 1)
        self.grouped = Same(8, 8, 3, padding=1, groups=2)
        self.deep = Same(8, 8, 3, padding=1, groups=8)
        self.layer = LayerNorm(8)
        self.few = GroupNorm(2, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(self.norm(self.conv(x)))
        x = self.few(self.layer(self.deep(self.grouped(x))))
        return F.linear(x.mean((2, 3)), self.head.weight, self.head.bias)


class BatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training
        )


class Same(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, padding=self.padding, groups=self.groups)


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class GroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class Grouped(nn.Module):
    """Grouped convolutions, as ResNeXt and RegNet have, and one with two filters a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(12)
        self.twice = nn.Conv2d(12, 24, 3, padding=1, groups=12)
        self.other = BatchNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.grouped(self.stem(x).relu())).relu()
        return self.head(self.other(self.twice(x)).relu().mean((2, 3)))  # type: ignore[no-any-return]


class Shuffled(nn.Module):
    """A channel shuffle, as ShuffleNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 1, groups=2)
        self.head = nn.Conv2d(8, 10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.stem(x).relu())
        n, channels, h, w = x.shape
        x = x.view(n, 2, channels // 2, h, w).transpose(1, 2).reshape(n, channels, h, w)
        return self.head(x).flatten(1)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """torch's attention, with a token that stands for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.token = nn.Linear(8, 8), nn.Parameter(torch.ones(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x[:, 0])
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Sizes(nn.Module):
    """Sizes as numbers, loops over shapes, an unequal split, and einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.shape, self.parts = (8, 1, 1), (2, 6)
        self.conv, self.scale = nn.Conv2d(1, 8, 3, padding=1), nn.Parameter(torch.ones(8))
        self.left, self.right = nn.Linear(2, 4), nn.Linear(6, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, deep: bool = False) -> Tensor:
        if x.shape[1] != 1 or mask is not None or deep:
            raise ValueError
        x = self.conv(x).roll(1, 2) * self.scale.view(self.shape)
        n, *rest = x.shape
        if len(x.shape) == 4 and int(n / 1) > 0:
            x = x.flatten(2).mT.reshape(n, -1, rest[0])
        left, right = x.split(self.parts, -1)
        left, right = self.left(left), self.right(right)
        kernel = torch.einsum("ntc,nsc->nts", left, right).softmax(-1)
        x = torch.einsum("nts,nsc->ntc", kernel, right) + left.reshape_as(right)
        return self.head(x[:, :, :64].norm(2, dim=1))  # type: ignore[no-any-return]


CASES: dict[type[nn.Module], dict[str, tuple[int, ...]]] = {
    Functional: {
        "conv.weight": (4, 1, 3, 3),
        "norm.weight": (4,),
        "same.weight": (4, 4, 1, 1),
        "grouped.weight": (4, 2, 3, 3),
        "deep.weight": (4, 1, 3, 3),
        "layer.weight": (4,),
        "few.weight": (4,),
        "head.weight": (10, 4),
    },
    Grouped: {
        "stem.weight": (4, 1, 3, 3),
        "grouped.weight": (6, 2, 3, 3),
        "norm.weight": (6,),
        "twice.weight": (12, 1, 3, 3),
        "other.weight": (12,),
        "head.weight": (10, 12),
    },
    Shuffled: {
        "stem.weight": (4, 1, 3, 3),
        "body.weight": (4, 2, 1, 1),
        "head.weight": (10, 4, 6, 6),
    },
    Attention: {
        "into.weight": (4, 8),
        "token": (1, 1, 4),
        "attention.in_proj_weight": (12, 4),
        "attention.out_proj.weight": (4, 4),
        "head.weight": (10, 4),
    },
    Sizes: {
        "scale": (4,),
        "conv.weight": (4, 1, 3, 3),
        "left.weight": (2, 1),
        "right.weight": (2, 3),
        "head.weight": (10, 2),
    },
}


@pytest.mark.parametrize(
    ("kind", "expected"), CASES.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_half_of_the_channels_are_kept(
    named: Named, kind: type[nn.Module], expected: dict[str, tuple[int, ...]]
) -> None:
    made = named(kind)
    assert sizes(made) == expected
    assert run_passes(at(made, 0.5)).shape == (3, 10)
    assert run_passes(at(made, 0.3)).shape == (3, 10)


def narrow(made: Network, submodel: Submodel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of a submodel, and those of the whole network that are zero elsewhere."""
    whole = initial(made, 1)
    known = {name: tuple(value.shape) for name, value in whole.items()}
    plan = corners(known, submodel, shapes(submodel) | statistics(submodel))
    small = extract(whole, plan)
    zeros = {name: torch.zeros_like(value) for name, value in whole.items()}
    for row in plan.rows:
        zeros[row.home][as_slices(row.there)] = small[row.local][as_slices(row.here)]
    return small, zeros


@pytest.mark.parametrize("kind", [Grouped, Shuffled])
def test_a_narrow_network_equals_the_whole_one_without_its_other_channels(
    named: Named, kind: Callable[[], nn.Module]
) -> None:
    """The kept channels of all layers are the same ones: outputs do not change if all others are
    zero.
    """
    made = named(kind)
    submodel = at(made, 0.5)
    small, zeros = narrow(made, submodel)
    x = torch.rand((3, *made.inputs), generator=torch.Generator().manual_seed(1))
    outputs = []
    for one, tensors in ((submodel, small), (full(made), zeros)):
        net = build(one).eval()
        net.load_state_dict(tensors, strict=False)
        with torch.no_grad():
            outputs.append(net(x))
    torch.testing.assert_close(outputs[0], outputs[1])
    assert outputs[0].std() > 0
