"""Blocks of a network that can be left out."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.slicing import corners, graft
from models.submodel import Submodel
from models.submodel_building import address, build, full, shapes
from tests.support.user_networks import Basic, Named, Residual, at, run_passes, sizes


def test_blocks_that_keep_the_shape_can_be_left_out(named: Named) -> None:
    """Three in an nn.Sequential, one after the block that changes the shape in an nn.ModuleList."""
    made = named(Residual)
    assert full(made).mask == ((1, 1, 1), (1, 1))
    least = shapes(at(made, 0.5))
    assert {name.split(".")[2] for name in least if name.startswith("net.layer")} == {"0"}
    assert least["net.layer2.0.conv1.weight"] == (4, 3, 3, 3)
    assert address(made, "net.layer2.1.norm1.running_mean") == (1, 1, "norm1.running_mean")
    assert address(made, "net.head.weight") is None
    for width, depth in ((0.5, 1), (0.5, 2), (1.0, 1), (0.3, 3)):
        assert run_passes(at(made, width, depth)).shape == (3, 10)


def test_blocks_left_out_are_grafted(named: Named) -> None:
    """At depth 2 the second block of layer1 stands in for the third; nothing is missing in
    layer2.
    """
    made = named(Residual)
    whole = shapes(full(made))
    plan = corners(whole, at(made, 0.5, 2))
    added = {row.home: row.local for row in graft(plan, whole).rows[len(plan.rows) :]}
    assert added == {
        name: name.replace("layer1.2", "layer1.1") for name in whole if "layer1.2" in name
    }


def test_the_first_block_of_a_section_stays(named: Named) -> None:
    with pytest.raises(ValueError, match="drops the first block"):
        build(Submodel(named(Residual), 1.0, ((0, 1, 1), (1, 1))))


def test_a_block_that_changes_the_shape_begins_a_section(named: Named) -> None:
    """Two of 6 channels, two of 8, in one nn.Sequential after a first layer."""
    blocks = ((6, 6), (6, 6), (6, 8, 2), (8, 8))
    made = named(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 1),
            *(Basic(*block) for block in blocks),
            nn.Flatten(),
            nn.Linear(8 * 16, 10),
        )
    )
    assert full(made).mask == ((1, 1), (1, 1))
    assert address(made, "net.3.conv1.weight") == (1, 0, "conv1.weight")


def test_sequentials_are_not_blocks(named: Named) -> None:
    """Two equal nn.Sequential in a row have no shortcut."""
    made = named(
        lambda: nn.Sequential(
            nn.Flatten(),
            *(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2)),
            nn.Linear(64, 10),
        )
    )
    assert full(made).mask == ()


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x))


class Chained(nn.Module):
    """Blocks without a shortcut; the last must output all of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.head = (
            nn.Linear(4, 8),
            nn.Sequential(Chain(), Chain()),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.first(x)).view(-1, 8))  # type: ignore[no-any-return]


def test_input_and_output_channels_of_optional_blocks_agree(named: Named) -> None:
    """The first block also outputs all channels, since it may be the last."""
    made = named(Chained, (4,), 3)
    assert list(sizes(made).values()) == [(4, 4), (8, 4), (3, 8)]
    assert run_passes(at(made, 0.5, 1)).shape == run_passes(at(made, 0.5, 2)).shape == (3, 3)
