"""The ResNet for sensor windows: counts by hand, narrow and shallow submodels, windows of any
length.
"""

from __future__ import annotations

import pytest
import torch

from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, shapes

WINDOW = (6, 100)


def test_counts_by_hand():
    """One block per section; 100, 50 and 25 samples; convolutions of 5 samples, norms with 2
    numbers per channel, projections of 1 sample.
    """
    (submodel,) = menu(network("resnet1d", WINDOW, 7), (1,), (1,))
    weights = {
        100: 5 * (6 * 32 + 2 * 32 * 32),
        50: 5 * (32 * 64 + 64 * 64) + 32 * 64,
        25: 5 * (64 * 128 + 128 * 128) + 64 * 128,
    }
    norms = 2 * (32 + 2 * 32 + 3 * 64 + 3 * 128)
    assert cost(submodel).parameters == sum(weights.values()) + norms + 128 * 7 + 7
    assert cost(submodel).macs == sum(samples * n for samples, n in weights.items()) + 128 * 7


def test_a_projection_stays_where_a_narrow_part_happens_to_keep_equal_channels():
    (part,) = menu(network("resnet1d", WINDOW, 7), (0.01,), (1,))
    assert shapes(part)["sections.1.0.shortcut.weight"] == (1, 1, 1)  # of 64 and of 32


@pytest.mark.parametrize("samples", [1, 2, 99, 100, 256])
def test_windows_of_any_length_pass(samples):
    made = network("resnet1d-tiny", (3, samples), 4)
    assert build(full(made)).eval()(torch.zeros(2, 3, samples)).shape == (2, 4)


def test_a_step_of_0_leaves_the_shortcut():
    """The first block of the first section has no projection and its input is not negative: it
    passes unchanged.
    """
    net = build(full(network("resnet1d-tiny", (3, 20), 4), ("steps",)))
    block = net.sections[0][0]
    with torch.no_grad():
        block.step.zero_()
    x = torch.rand(2, 8, 20)
    assert torch.equal(block(x), x)
