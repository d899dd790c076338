"""Networks compute the same in the memory layout in which they train fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from models.layers.inverted_residual_network import Drop
from models.named_network import network
from models.submodel_building import arrange_channels, build, full


@pytest.mark.parametrize("name", ["resnet-tiny", "mobilenet-tiny", "densenet-small", "vgg-9-small"])
def test_outputs_and_gradients_are_the_same(name: str) -> None:
    submodel = full(network(name, (3, 32, 32), 10))
    plain, arranged = build(submodel), arrange_channels(build(submodel), submodel)
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for net in (plain, arranged):
        net.double()
        for module in net.modules():
            if isinstance(module, nn.Dropout | Drop):  # which draw
                module.eval()
        net(x).square().mean().backward()
    for (key, expected), found in zip(plain.named_parameters(), arranged.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=key)


def test_only_wide_convolutions_change() -> None:
    wide = full(network("resnet-tiny", (3, 32, 32), 10))
    assert is_arranged(arrange_channels(build(wide), wide))
    narrow = replace(wide, width=0.25)
    assert not is_arranged(arrange_channels(build(narrow), narrow))


def test_a_users_network_may_view_its_outputs() -> None:
    given = full(network("tests.models.test_channel_layout:viewing", (3, 8, 8), 10))
    net = arrange_channels(build(given), given)
    assert not is_arranged(net)
    assert net(torch.rand(2, 3, 8, 8)).shape == (2, 10)


def is_arranged(net: nn.Module) -> bool:
    layers = [m.weight for m in net.modules() if isinstance(m, nn.Conv2d)]
    return any(not weight.is_contiguous() for weight in layers)


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 64, 3, padding=1), nn.Linear(64 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.conv(x)
        return self.head(features.view(len(x), -1))  # type: ignore[no-any-return]


def viewing() -> nn.Module:
    return Viewing()
