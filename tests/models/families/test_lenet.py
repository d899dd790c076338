"""LeNet-5: RecipFL's counts, and accepted images."""

from __future__ import annotations

import pytest
import torch

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, shapes
from tests.support.published_network_sizes import read_published_counts

DIGITS = (1, 28, 28)


@pytest.mark.parametrize(("preset", "key"), [("5", "LeNet5"), ("5-scaled", "LeNet5_dwscaled")])
def test_counts_of_recipfls_notes(preset, key):
    made = cost(full(network(f"lenet-{preset}", DIGITS, 10)))
    assert (made.parameters, made.macs) == read_published_counts(f"RecipFL/{key}")


@pytest.mark.parametrize(
    ("preset", "parameters", "macs"), [("5", 44_470, 281_640), ("5-scaled", 5_593, 120_072)]
)
def test_counts_of_recipfl(preset, parameters, macs):
    made = cost(full(network(f"lenet-{preset}", DIGITS, 10)))
    assert (made.parameters, made.macs) == (parameters, macs)


def test_half_of_it_by_hand():
    """Channels 1, 3, 8, hidden 60 and 42: the first linear reads 8 channels of 16 positions."""
    (half,) = menu(network("lenet", DIGITS, 10), (0.5,), (1,))
    assert shapes(half)["hidden.0.weight"] == (60, 8, 16)
    assert (
        cost(half).parameters
        == (25 + 1) * 3 + 6 + (75 + 1) * 8 + 16 + (128 + 1) * 60 + (60 + 1) * 42 + (42 + 1) * 10
    )


@pytest.mark.parametrize(("side", "sides"), [(28, [12, 4]), (17, [6, 1])])
def test_sides_of_the_maps(side, sides):
    net, seen = build(full(network("lenet", (1, side, side), 10))), []
    for section in net.sections:
        section[0].register_forward_hook(lambda module, args, out: seen.append(out.shape[-1]))
    assert net(torch.zeros(2, 1, side, side)).shape == (2, 10)
    assert seen == sides


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match=r"8x20.*at least 16x16"):
        network("lenet", (1, 8, 20), 10)
