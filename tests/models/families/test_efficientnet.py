"""EfficientNetV2-S: counts of torchvision's network and of FedFA's submodels, torchvision's
weights.
"""

from __future__ import annotations

import pytest
import torch

from models.cost import cost
from models.layers.batch_norm import norms
from models.layers.inverted_residual_network import Drop
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, initial, shapes
from tests.support.pretrained import assert_equals_torchvision
from tests.support.published_network_sizes import count_network, read_published_counts

CIFAR = (3, 32, 32)

# torchvision rounds hidden channels to multiples of 8: where a submodel's 12 (18) channels are not
# one, its two blocks that widen nothing become 3x3 to 16 (24), norm, and 1x1 back, norm. Those have
# no place in the whole network, whose 24 channels make a single 3x3, so a submodel that is a corner
# of it goes without: less by so many parameters per block, and by the convolutions' at 32 x 32
# places. width: (of convolutions, of norms)
ROUNDING = {0.5: (12 * 9 * 4 + 16 * 12, 2 * 16), 0.75: (18 * 9 * 6 + 24 * 18, 2 * 24), 1.0: (0, 0)}


def counts(depths: tuple[int, ...], width: float) -> tuple[int, int]:
    (submodel,) = menu(network("efficientnet", CIFAR, 10), (width,), (depths,))
    return count_network(submodel)


@pytest.mark.parametrize(
    ("depths", "width", "parameters", "macs"),
    [
        ((2, 2, 2, 2, 2, 2), 0.5, 898_438 - 2 * 656, 73_278_976 - 2 * 624 * 1024),
        ((2, 3, 3, 4, 5, 6), 0.75, 5_148_694 - 2 * 1452, 312_535_232 - 2 * 1404 * 1024),
        ((2, 3, 3, 4, 5, 6), 1, 8_953_306, 546_884_096),
        ((2, 4, 4, 6, 9, 15), 1, 20_190_298, 898_800_128),
    ],
)
def test_counts_of_fedfa(depths, width, parameters, macs):
    """Narrow submodels lack the channels that torchvision adds by rounding, see above."""
    assert counts(depths, width) == (parameters, macs)


@pytest.mark.parametrize(
    ("depths", "width"),
    [
        ((2, 2, 2, 2, 2, 2), 0.75),
        ((2, 2, 2, 2, 2, 2), 1.0),
        ((2, 3, 3, 4, 5, 6), 0.5),
        ((2, 4, 4, 6, 9, 15), 0.5),
        ((2, 4, 4, 6, 9, 15), 0.75),
    ],
    ids=str,
)
def test_published_counts(depths, width):
    """Those that the test above does not count."""
    parameters, macs = read_published_counts(f"FedFA-proposal/EfficientNetV2 n={depths} w={width}")
    weights, affine = ROUNDING[width]
    assert counts(depths, width) == (
        parameters - 2 * (weights + affine),
        macs - 2 * weights * 32 * 32,
    )


def test_counts_of_torchvision():
    """21,458,488 parameters and 8.366 G multiply-adds at 384, torchvision's own figures."""
    whole = cost(full(network("efficientnet-v2s", (3, 384, 384), 1000)))
    assert whole.parameters == 21_458_488
    assert whole.macs == pytest.approx(8.366e9, rel=1e-3)


@pytest.mark.slow
def test_outputs_equal_torchvisions():
    assert_equals_torchvision("efficientnet-v2s")


def test_presets_for_small_images_have_the_tensors_of_the_large():
    small, large = (
        full(network(f"efficientnet-{preset}", CIFAR, 10)) for preset in ("v2s-cifar", "v2s")
    )
    assert shapes(small) == shapes(large)
    assert count_network(small)[1] > 10 * count_network(large)[1]


def test_squeezed_channels_narrow_with_the_inputs_of_a_block():
    """The first of 128 channels reads 64: 16 squeezed of 256 hidden, at 0.3 ceil(4.8) of
    ceil(76.8).
    """
    made = network("efficientnet", CIFAR, 10)
    (narrow,) = menu(made, (0.3,), (1,))
    assert shapes(full(made))["sections.3.0.residual.squeeze.down.weight"] == (16, 256)
    assert shapes(narrow)["sections.3.0.residual.squeeze.down.weight"] == (5, 77)


def test_a_block_drops_as_often_in_every_submodel():
    """0.2 times its place among the 40 blocks of the largest network: 25 blocks come before the
    second block of the last section.
    """
    made = network("efficientnet", CIFAR, 10)
    for submodel in (full(made), *menu(made, (0.3,), (2,))):
        rates = {
            name: m.rate
            for name, m in build(submodel, "meta").named_modules()
            if isinstance(m, Drop)
        }
        assert rates["sections.0.0.drop"] == 0
        assert rates["sections.5.1.drop"] == pytest.approx(0.2 * 26 / 40)


def test_training_repeats_from_a_seed_and_evaluation_drops_nothing():
    """Stochastic depth draws only from torch's global generator."""
    made = network("efficientnet-tiny", (1, 8, 8), 10)
    net = build(full(made))
    net.load_state_dict(initial(made, 0), strict=False)
    x = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def once(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return net(x).detach()

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))
    net.eval()
    assert torch.equal(once(1), once(2))


def test_initialisation_matches_the_source():
    """The classifier is uniform up to 1 / sqrt(classes); every norm adds 0.001 to a variance."""
    net = build(full(network("efficientnet-tiny", (1, 8, 8), 4))).requires_grad_(False)
    assert 0.45 < float(net.linear.weight.abs().max()) <= 0.5
    assert not net.linear.bias.any()
    assert {m.eps for m in norms(net).values()} == {1e-3}
