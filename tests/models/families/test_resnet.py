"""The post-activation ResNet: counts of InCo, NeFL and RecipFL, skipped blocks, steps,
torchvision's weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.cost import cost
from models.families import resnet
from models.families.resnet import CIFAR, FOUR, NAMES, Size, convert
from models.layers.batch_norm import norms
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.submodel import Submodel
from models.submodel_building import build, full, shapes
from tests.support.pretrained import assert_equals_torchvision
from tests.support.published_network_sizes import NOTES, count_network, read_published_counts

IMAGES, DIGITS = (3, 32, 32), (1, 8, 8)


def prefix(depth: int, *counts: int) -> tuple[tuple[int, ...], ...]:
    """Return a mask that keeps the first blocks of each section of `depth`."""
    return tuple((1,) * count + (0,) * (depth - count) for count in counts)


def read(text: str) -> tuple[tuple[int, ...], ...]:
    """Parse a mask: "11 10" -> ((1, 1), (1, 0))."""
    return tuple(tuple(map(int, section)) for section in text.split())


def roots(*shares: float) -> tuple[float, ...]:
    """Return NeFL's channel ratios for fractions of parameters, with the authors' root."""
    return tuple(map(math.sqrt, shares))


EVEN, WHOLE = roots(0.2, 0.4, 0.6, 0.8), (1.0,) * 4

# key in the notes -> channel ratios and masks of the four submodels below the whole (NeFL, Tables
# XII to XVII; an empty mask keeps all)
NEFL = {
    "resnet18/W": (EVEN, [()] * 4),
    "resnet18/D_code": (
        WHOLE,
        [read("11 00 11 00"), read("11 11 00 10"), read("11 11 11 10"), read("10 11 00 11")],
    ),
    "resnet18/D_seed": (
        WHOLE,
        [read("11 00 11 00"), read("10 00 10 10"), read("11 11 11 10"), read("10 11 00 11")],
    ),
    "resnet18/WD": (roots(0.34, 0.4, 0.6, 0.8), [read("11 11 11 10"), (), (), ()]),
    "resnet34/W": (EVEN, [()] * 4),
    "resnet34/D": (
        WHOLE,
        [
            read("100 1000 100000 100"),
            read("111 1111 110001 100"),
            read("111 1111 110001 101"),
            read("111 1001 110001 111"),
        ],
    ),
    "resnet34/WD": (
        roots(0.378296187, 0.625390289, 0.770943105, 0.899800797),
        [
            read("111 1001 100001 101"),
            read("111 1001 111001 101"),
            read("111 1111 111101 101"),
            read("111 1111 111001 111"),
        ],
    ),
    "resnet56/W": (EVEN, [()] * 4),
    "resnet56/D": (
        WHOLE,
        [prefix(9, 2, 2, 2), prefix(9, 3, 3, 4), prefix(9, 4, 4, 6), prefix(9, 9, 8, 7)],
    ),
    "resnet56/WD": (
        roots(0.464938491, 0.607811604, 0.777135864, 0.902901024),
        [prefix(9, n, n, n) for n in (4, 6, 7, 8)],
    ),
    "resnet110/W": (EVEN, [()] * 4),
    "resnet110/D": (
        WHOLE,
        [
            prefix(18, 16, 4, 3),
            prefix(18, 14, 7, 7),
            prefix(18, 17, 13, 10),
            prefix(18, 16, 16, 14),
        ],
    ),
    "resnet110/WD_code": (
        roots(0.457252561, 0.603830987, 0.774235493, 0.901429773),
        [prefix(18, n, n, n) for n in (8, 12, 14, 16)],
    ),
}
MODELS = {
    "resnet18": "resnet-18-nefl",
    "resnet34": "resnet-34-nefl",
    "resnet56": "resnet-56",
    "resnet110": "resnet-110",
}


@cache
def whole(
    model: str, inputs: tuple[int, ...] = IMAGES, outputs: int = 10, feature: str = ""
) -> Submodel:
    return full(network(model, inputs, outputs), (feature,) if feature else ())


@pytest.mark.parametrize("key", NEFL)
def test_counts_of_nefl(key):
    """Every submodel of the paper, with a step per kept block and the projections of skipped
    first blocks.
    """
    path = NOTES.with_name("nefl_submodels.json")
    if not path.exists():
        pytest.skip("the notes with the sizes of published networks are not beside this checkout")
    top, (widths, masks) = whole(MODELS[key.partition("/")[0]], feature="steps"), NEFL[key]
    made = [
        replace(top, width=width, mask=mask or top.mask)
        for width, mask in zip(widths, masks, strict=True)
    ] + [top]
    assert [count_network(submodel) for submodel in made] == [
        (row["params_active"], row["macs_active"]) for row in json.loads(path.read_text())[key]
    ]


@pytest.mark.parametrize("layers", ["10", "14", "18", "22", "26"])
def test_counts_of_inco(layers):
    assert count_network(whole(f"resnet-{layers}")) == read_published_counts(f"InCo/ResNet{layers}")


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "feature", "parameters", "macs"),
    [
        ("resnet-18", IMAGES, 10, "", 11_181_642, 37_016_576),  # InCo
        ("resnet-18-cifar", IMAGES, 10, "", 11_173_962, 555_422_720),  # RecipFL
        ("resnet-18-nefl", IMAGES, 10, "steps", 11_173_970, 140_186_624),
        ("resnet-34-nefl", IMAGES, 10, "steps", 21_282_138, 291_181_568),
        ("resnet-56", IMAGES, 10, "steps", 855_797, 125_747_840),
        ("resnet-110", IMAGES, 10, "steps", 1_730_768, 253_149_824),
        # torchvision's tables: 3.66, 7.80, 22.75 G
        ("resnet-34", (3, 224, 224), 1000, "", 21_797_672, 3_663_761_408),
        ("resnet-101", (3, 224, 224), 1000, "", 44_549_160, 7_801_405_440),
        ("resnet-wide-101", (3, 224, 224), 1000, "", 126_886_696, 22_753_050_624),
    ],
)
def test_counts(model, inputs, outputs, feature, parameters, macs):
    found = cost(whole(model, inputs, outputs, feature))
    assert (found.parameters, found.macs) == (parameters, macs)


def test_recipfls_narrow_network_rounds_down(monkeypatch):
    """A fifth of ResNet18 is 12, 25, 51, 102 channels in RecipFL's code; this project rounds up to
    13, 26, 52, 103, and is a little larger.
    """
    narrow = replace(whole("resnet-18-cifar"), width=0.2)
    assert count_network(narrow) == (457_578, 23_106_102)
    monkeypatch.setattr(
        resnet,
        "PRESETS",
        {"18-cifar": Size(tuple(int(0.2 * width) for width in FOUR), (2, 2, 2, 2), CIFAR)},
    )
    net = build(whole("resnet-18-cifar"), "meta")
    assert [net.sections[s]["1"].conv2.out_channels for s in range(4)] == [12, 25, 51, 102]
    assert sum(p.numel() for p in net.parameters()) == 444_218


def test_resolution_of_the_three_stems():
    """For 32x32 the first section sees 8x8 after torchvision's stem, 32x32 after CIFAR's, 16x16
    after NeFL's.
    """
    seen = {}
    for suffix in ("", "-cifar", "-nefl"):
        net = build(whole(f"resnet-10{suffix}"), "meta")
        net.sections[0]["0"].register_forward_hook(
            lambda module, args, out, suffix=suffix: seen.update({suffix: tuple(out.shape[1:])})
        )
        net(torch.zeros(2, *IMAGES, device="meta"))
    assert seen == {"": (64, 8, 8), "-cifar": (64, 32, 32), "-nefl": (64, 16, 16)}


def test_a_skipped_first_block_leaves_its_projection():
    """Sections 1 and 2 keep only the projection's convolution and norm; section 0 has no
    projection and passes its input on.
    """
    made = whole("resnet-small", DIGITS)
    submodel = replace(made, mask=((0, 0), (0, 0), (0, 1)))
    found = {name for name in shapes(submodel) if name.startswith("sections")}
    projections = {
        f"sections.{s}.0.shortcut.{part}"
        for s in (1, 2)
        for part in ("conv.weight", "norm.weight", "norm.bias")
    }
    assert projections < found
    assert {name for name in found - projections if not name.startswith("sections.2.1.")} == set()
    net = build(submodel).eval()
    x, left = torch.rand(2, 16, 8, 8), net.sections[1]["0"]
    assert torch.equal(left(x), F.relu(left.shortcut.norm(left.shortcut.conv(x))))
    assert net(torch.rand(2, *DIGITS)).shape == (2, 10)


@pytest.mark.parametrize("model", ["resnet-small", "resnet-101-cifar"])
def test_a_step_of_0_is_a_skipped_block(model):
    """The whole network with some steps at 0 equals the submodel without those blocks."""
    made = whole(model, DIGITS, feature="steps")
    mask = tuple((s % 2, *section[1:-1], 0) for s, section in enumerate(made.mask))
    torch.manual_seed(0)
    net, part = build(made).eval(), build(replace(made, mask=mask)).eval()
    part.load_state_dict(net.state_dict(), strict=False)
    for section, keeps in zip(net.sections, mask, strict=True):
        for index, keep in enumerate(keeps):
            torch.nn.init.constant_(section[str(index)].step, keep)
    x = torch.rand(2, *DIGITS)
    with torch.no_grad():
        torch.testing.assert_close(net(x), part(x))


def test_a_step_multiplies_what_a_block_adds():
    """relu(x + 3 F(x)) for a positive input; each kept block has one step, of shape [1],
    initially 1.
    """
    made = whole("resnet-small", DIGITS, feature="steps")
    assert sum(name.endswith(".step") for name in shapes(made)) == 6
    assert shapes(made)["sections.1.0.step"] == (1,)
    assert not any(name.endswith(".step") for name in shapes(whole("resnet-small", DIGITS)))
    block = build(made).eval().sections[0]["1"]
    x = torch.rand(2, 16, 8, 8)
    added = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    assert torch.equal(block(x), F.relu(x + added))
    torch.nn.init.constant_(block.step, 3)
    assert torch.equal(block(x), F.relu(x + 3 * added))


def test_a_bottleneck_scales_inside_and_out():
    """Half of wide-101's second section: 256 channels out of 512, 128 inside of 256."""
    found = shapes(replace(whole("resnet-wide-101"), width=0.5))
    assert found["sections.1.1.conv1.weight"] == (128, 256, 1, 1)
    assert found["sections.1.1.conv2.weight"] == (128, 128, 3, 3)
    assert found["sections.1.1.conv3.weight"] == (256, 128, 1, 1)
    assert found["sections.0.0.shortcut.conv.weight"] == (128, 32, 1, 1)


@pytest.mark.parametrize(
    ("model", "he"), [("resnet-10", True), ("resnet-110", True), ("resnet-10-cifar", False)]
)
def test_initial_spread(model, he):
    """3x3 convolutions of 64 channels: He's sqrt(2 / 576) by fan out, PyTorch's uniform has sqrt(1
    / 3 576); norms start at 1 and 0.
    """
    torch.manual_seed(0)
    net = build(whole(model))
    weight = net.sections[2 if model == "resnet-110" else 0]["0"].conv2.weight
    assert float(weight.detach().std()) == pytest.approx(
        math.sqrt((2 if he else 1 / 3) / 576), rel=0.03
    )
    assert all(bool((m.weight == 1).all() and (m.bias == 0).all()) for m in norms(net).values())


@pytest.mark.parametrize("mask", [((1, 1), (1, 1)), ((1, 1), (1, 1), (1,))])
def test_masks_that_do_not_fit(mask):
    with pytest.raises(ValueError, match="expected blocks per section"):
        build(replace(whole("resnet-small", DIGITS), mask=mask))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet-18", "resnet-101"])
def test_outputs_equal_torchvisions(model):
    assert_equals_torchvision(model)


@pytest.mark.parametrize("preset", NAMES)
def test_torchvisions_tensors_fit(preset):
    """Every torchvision tensor but the counters fits by name and shape."""
    with torch.device("meta"):
        state = import_torchvision("models").get_model(NAMES[preset], weights=None).state_dict()
    found = convert(preset, state)
    net = build(whole(f"resnet-{preset}", (3, 224, 224), 1000), "meta")
    wanted = {
        name: value.shape
        for name, value in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert {name: value.shape for name, value in found.items()} == wanted
    assert len(found) == sum(not name.endswith("num_batches_tracked") for name in state)


def test_a_missing_tensor_of_torchvision_is_named():
    with pytest.raises(KeyError, match=r"conv1\.weight"):
        convert("18", {})
