"""Axes of a network that scale in width, and axes that stay whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.slicing import corners, extract
from models.submodel_building import build, find_labelled, full, initial, shapes, statistics
from tests.support.slice_insertion import embed
from tests.support.user_networks import Named, Residual, at, cnn, run_passes, sizes


def test_a_plain_cnn_keeps_its_leading_channels_and_their_positions(named: Named) -> None:
    """8 and 16 channels; the linear reads 16 channels of 2x2 positions. 0.3 keeps 3 and 5 of
    them.
    """
    made = named(lambda: cnn())
    assert sizes(made) == {
        "0.0.weight": (4, 1, 3, 3),
        "0.1.weight": (4,),
        "1.weight": (8, 4, 3, 3),
        "4.weight": (10, 32),
    }
    assert sizes(made, 0.3) == {
        "0.0.weight": (3, 1, 3, 3),
        "0.1.weight": (3,),
        "1.weight": (5, 3, 3, 3),
        "4.weight": (10, 20),
    }
    assert statistics(at(made, 0.5)) == {"net.0.1.running_mean": (4,), "net.0.1.running_var": (4,)}
    assert find_labelled(at(made, 0.5)) == {"net.4.weight", "net.4.bias"}


def test_narrow_network_equals_handwritten_one(named: Named) -> None:
    """The corner of the whole, loaded into a network written for half the channels, has the same
    outputs.
    """
    submodel = at(named(lambda: cnn()), 0.5)
    tensors = initial(submodel.network, 0)
    by_hand = cnn(4).eval()
    for name, value in by_hand.state_dict().items():
        if value.ndim:
            value.copy_(tensors[f"net.{name}"][tuple(map(slice, value.shape))])
    x = torch.rand((3, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run_passes(submodel), by_hand(x), rtol=0, atol=0)


def test_a_perceptron_with_norms_of_every_kind(named: Named) -> None:
    made = named(
        lambda: nn.Sequential(
            *(
                nn.Flatten(),
                nn.Linear(64, 12),
                nn.BatchNorm1d(12),
                nn.PReLU(12),
                nn.Linear(12, 8),
                nn.LayerNorm(8, elementwise_affine=False),
            ),
            *(nn.Linear(8, 6), nn.RMSNorm(6), nn.Dropout(), nn.Linear(6, 10)),
        )
    )
    assert [
        sizes(made)[name]
        for name in ("1.weight", "3.weight", "4.weight", "6.weight", "7.weight", "9.weight")
    ] == [
        *((6, 64), (6,), (4, 6), (3, 4), (3,), (10, 3)),
    ]
    assert run_passes(at(made, 0.5)).shape == (3, 10)


def test_a_group_norm_keeps_its_channels_where_its_groups_do_not_divide(named: Named) -> None:
    """4 groups of 8 channels divide 4, not 3."""
    made = named(
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8 * 36, 10)
        )
    )
    assert sizes(made, 0.5)["0.weight"][0] == 4
    assert sizes(made, 0.3)["0.weight"][0] == 8
    assert run_passes(at(made, 0.3)).shape == (3, 10)


def test_depthwise_convolutions_follow_their_channels(named: Named) -> None:
    """The second has two filters per channel: half of 6 channels are 3, with 6 of its 12
    filters. The transposed one narrows 12 to 4.
    """
    made = named(
        lambda: nn.Sequential(
            *(
                nn.Conv2d(1, 6, 1),
                nn.Conv2d(6, 6, 3, groups=6),
                nn.Conv2d(6, 12, 3, groups=6),
                nn.BatchNorm2d(12),
            ),
            *(
                nn.ConvTranspose2d(12, 4, 2, 2),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(4, 10),
            ),
        )
    )
    assert list(sizes(made).values()) == [
        (3, 1, 1, 1),
        (3, 1, 3, 3),
        (6, 1, 3, 3),
        (6,),
        (6, 2, 2, 2),
        (10, 2),
    ]
    assert run_passes(at(made, 0.5)).shape == (3, 10)


class Squeezed(nn.Module):
    """Sizes read from shapes, a gain outside of layers, channels last, as in real networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.LayerNorm(8)
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)
        self.gain = nn.Parameter(torch.ones(8, 1, 1))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        # [N, 8, 6, 6]
        x = self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * self.gain
        n, channels, _, _ = x.shape
        gate = self.up(F.relu(self.down(x.mean((2, 3))))).sigmoid().view(n, channels, 1, 1)
        x = (x * (1 - gate))[:, :, ::2, ::2]
        return self.head(x.flatten(2).transpose(1, 2).amax(dim=1))  # type: ignore[no-any-return]


def test_gates_gains_and_permutations_are_followed(named: Named) -> None:
    made = named(Squeezed)
    assert sizes(made) == {
        "gain": (4, 1, 1),
        "conv.weight": (4, 1, 3, 3),
        "norm.weight": (4,),
        "down.weight": (2, 4),
        "up.weight": (4, 2),
        "head.weight": (10, 4),
    }
    assert run_passes(at(made, 0.5)).shape == (3, 10)


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Conv2d(1, 8, 3),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(16, 6, 1),
        )
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cat([x, self.second(x)], 1)
        return self.head(self.third(x).mean((2, 3)))  # type: ignore[no-any-return]


def test_concatenated_channels_scale(named: Named) -> None:
    made = named(Concatenated)
    assert list(sizes(made).values()) == [(4, 1, 3, 3), (4, 4, 3, 3), (3, 8, 1, 1), (10, 3)]
    assert run_passes(at(made, 0.5)).shape == (3, 10)


class Written(nn.Module):
    """A literal size does not follow the width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = (
            nn.Conv2d(1, 8, 3),
            nn.Linear(8 * 36, 6),
            nn.Linear(6, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.conv(x).view(-1, 8 * 36)))  # type: ignore[no-any-return]


def test_channels_of_a_written_size_stay_whole(named: Named) -> None:
    assert list(sizes(named(Written)).values()) == [(8, 1, 3, 3), (3, 288), (10, 3)]


class Split(nn.Module):
    """Splits channels in pairs: half of the channels would be half of the pairs, but the tracer
    cannot know that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paired, self.hidden, self.head = nn.Linear(4, 8), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.paired(x).view(x.shape[0], -1, 2).sum(2)))  # type: ignore[no-any-return]


def test_split_channels_stay_whole(named: Named) -> None:
    assert list(sizes(named(Split, (4,), 3)).values()) == [(8, 4), (3, 4), (3, 3)]


class Training(nn.Module):
    """In training, a second branch joins channels that evaluation keeps apart, and swaps the two
    halves of a third layer's channels, so that each half keeps its own leading part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.third = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.third(self.one(x) + self.other(x))
        if self.training:
            left, right = self.third(self.one(x)).chunk(2, 1)
            out = out + torch.cat([right, left], 1)
        return self.head(out)  # type: ignore[no-any-return]


def test_training_behaviour_is_traced_too(named: Named) -> None:
    made = named(Training, (4,), 3)
    assert list(sizes(made).values()) == [(4, 4), (4, 4), (4, 4), (3, 4)]
    assert run_passes(at(made, 0.5)).shape == (3, 3)


def test_a_weight_used_twice_is_cut_once(named: Named) -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
        net[2].weight = net[1].weight
        return net

    made = named(tied, (4,), 3)
    assert list(sizes(made).values()) == [(3, 4), (3, 3), (3, 3)]
    net = build(at(made, 0.5)).net
    assert net[2].weight is net[1].weight


def depthwise() -> nn.Module:
    filters = nn.Sequential(
        nn.Conv2d(1, 6, 1),
        nn.Conv2d(6, 12, 3, groups=6),
        nn.PReLU(12),
        nn.ConvTranspose2d(12, 4, 2, 2),
    )
    return nn.Sequential(filters, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 36, 10))


@pytest.mark.parametrize(
    "function",
    [lambda: cnn(), depthwise, Residual, Concatenated, Written],
    ids=["cnn", "depthwise", "residual", "cat", "view"],
)
def test_channels_meet_the_same_weights_in_the_whole_network(
    named: Named, function: Callable[..., object]
) -> None:
    """The narrow network embedded in a whole one of zeros has the same outputs: no channel is
    misplaced.
    """
    submodel = at(named(function), 0.5, 9)
    tensors = initial(submodel.network, 0)
    plan = corners(
        {k: tuple(v.shape) for k, v in tensors.items()},
        submodel,
        shapes(submodel) | statistics(submodel),
    )
    local = extract(tensors, plan)
    nets = build(submodel).eval(), build(full(submodel.network)).eval()
    nets[0].load_state_dict(local, strict=False)
    nets[1].load_state_dict(embed({}, plan, local), strict=False)
    x = torch.rand((3, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(nets[0](x), nets[1](x), rtol=1e-4, atol=1e-5)
