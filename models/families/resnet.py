"""The post-activation ResNet (He et al., arXiv 1512.03385), as InCo, NeFL, DepthFL, ScaleFL and
RecipFL use it.

Presets are named by their number of layers: 10, 14, 18, 22, 26, 34 (two 3x3 convolutions per
block), 101 and wide-101 (bottlenecks; Wide-ResNet-101-2, arXiv 1605.07146, has twice the inner
channels). Each comes with three stems: "18" has torchvision's (7x7 of stride 2 and max-pool),
"18-cifar" a 3x3 convolution alone, "18-nefl" that and the max-pool. 56 and 110 are He's for CIFAR
with projected shortcuts; "small" and "tiny" are for a CPU.

Width scales every section's channels and a bottleneck's inner ones. Depth may leave out any block
(NeFL, arXiv 2308.07761). If the first block of a section is left out, its projection stays,
relu(projection(x)), since it changes channels and resolution; without a projection, x passes
through unchanged. With exits (`models.layers.early_exits`) a submodel ends at its last exit and has
no later blocks. "steps": the residual of a block is multiplied by a learnable number,
relu(shortcut(x) + step * F(x)), initially 1 (NeFL, section III).

Initialisation is torchvision's for its stem and for 56 and 110 (He-normal convolutions, fan out),
PyTorch's for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, Tensors, Torchvision, TypicalData, check_mask, parse_address
from models.layers.basic import Norm, Standardise
from models.layers.early_exits import (
    EXITS,
    early_exits,
    exit_kind,
    exit_places,
    features_at,
    labelled_tensors,
)
from models.layers.residual import Block, Projection, Skipped
from models.submodel import Network, Submodel, scale_count

__all__ = ["RESNET"]

EXPANSION = 4  # output channels of a bottleneck per plane


@dataclass(frozen=True)
class Stem:
    """A convolution, optionally followed by a 3x3 max-pool of stride 2."""

    kernel: int
    stride: int
    pool: bool


@dataclass(frozen=True)
class Size:
    """One size of the network.

    planes: channels of the plain 3x3 convolutions per section at width 1; the stem has as many as
        the first section
    depths: blocks per section
    stem: the stem
    inner: 0 for blocks of two 3x3 convolutions; for bottlenecks, inner channels per plane
    he: He-normal initialisation
    """

    planes: tuple[int, ...]
    depths: tuple[int, ...]
    stem: Stem
    inner: int = 0
    he: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Output channels of each section at width 1."""
        return tuple(plane * (EXPANSION if self.inner else 1) for plane in self.planes)


IMAGENET, CIFAR, NEFL = Stem(7, 2, pool=True), Stem(3, 1, pool=False), Stem(3, 1, pool=True)
THREE, FOUR = (16, 32, 64), (64, 128, 256, 512)
DEPTHS = {
    "10": (1, 1, 1, 1),
    "14": (1, 1, 2, 2),
    "18": (2, 2, 2, 2),
    "22": (2, 2, 3, 3),
    "26": (3, 3, 3, 3),
    "34": (3, 4, 6, 3),
}


def list_sizes(suffix: str, stem: Stem, *, he: bool) -> dict[str, Size]:
    """Return every depth with one stem."""
    basic = {f"{name}{suffix}": Size(FOUR, depths, stem, he=he) for name, depths in DEPTHS.items()}
    deep = {
        f"{name}101{suffix}": Size(FOUR, (3, 4, 23, 3), stem, inner, he)
        for name, inner in (("", 1), ("wide-", 2))
    }
    return basic | deep


PRESETS: Mapping[str, Size] = {
    "small": Size(THREE, (2, 2, 2), CIFAR),
    "tiny": Size(THREE, (3, 3, 3), NEFL),
    "56": Size(THREE, (9, 9, 9), CIFAR, he=True),
    "110": Size(THREE, (18, 18, 18), CIFAR, he=True),
    **list_sizes("", IMAGENET, he=True),
    **list_sizes("-cifar", CIFAR, he=False),
    **list_sizes("-nefl", NEFL, he=False),
}
NAMES: Mapping[str, str] = {
    "18": "resnet18",
    "34": "resnet34",
    "101": "resnet101",
    "wide-101": "wide_resnet101_2",
}


def find_torchvision_name(name: str) -> str:
    """Return torchvision's name of a tensor: sections.1.0.shortcut.norm.bias ->
    layer2.0.downsample.1.bias.
    """
    if place := parse_address(name):
        section, block, rest = place
        rest = (
            rest.replace("shortcut.conv", "downsample.0")
            .replace("shortcut.norm", "downsample.1")
            .replace("norm", "bn")
        )
        return f"layer{section + 1}.{block}.{rest}"
    module, part = name.split(".")
    return f"{({'stem': 'conv1', 'norm': 'bn1', 'linear': 'fc'})[module]}.{part}"


def convert(preset: str, state: Tensors) -> dict[str, Tensor]:
    """Return torchvision's tensors under this project's names; KeyError if one is missing."""
    with torch.device("meta"):
        net = ResNet(
            Submodel(
                Network("resnet", preset, (3, 224, 224), 1000),
                1.0,
                tuple((1,) * depth for depth in PRESETS[preset].depths),
            )
        )
    return {
        name: state[find_torchvision_name(name)]
        for name in net.state_dict()
        if not name.endswith("num_batches_tracked")
    }


def initialise(net: nn.Module) -> None:
    """Initialise as torchvision: He-normal convolutions by fan out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def build_sections(submodel: Submodel, size: Size, end: int) -> nn.ModuleList:
    """Build the first `end` blocks, named by their indices in the largest network. A skipped first
    block is replaced with its projection.
    """
    made, channels, number, step = (
        nn.ModuleList(),
        scale_count(submodel.width, size.planes[0]),
        0,
        "steps" in submodel.features,
    )
    for section, (plane, width, mask) in enumerate(
        zip(size.planes, size.widths, submodel.mask, strict=True)
    ):
        outputs, inner, blocks = (
            scale_count(submodel.width, width),
            scale_count(submodel.width, plane * size.inner),
            nn.ModuleDict(),
        )
        for index, keep in enumerate(mask):
            number += 1
            if number > end:
                break
            # The position of a block decides whether it has a projection, not the numbers of
            # channels: a narrow submodel may round both to the same number, and the names of
            # tensors must not depend on the width.
            stride = 2 if section and index == 0 else 1
            shortcut = (
                Projection(channels, outputs, stride)
                if index == 0 and (section or size.inner)
                else None
            )
            if keep:
                blocks[str(index)] = Block(channels, outputs, inner, stride, shortcut, step=step)
            elif shortcut is not None:
                blocks[str(index)] = Skipped(shortcut)
            channels = outputs
        made.append(blocks)
    return made


class ResNet(nn.Module):
    """Outputs [N, outputs] of raw images [N, C, H, W], uint8 or float; with exits, those of the
    deepest one (`net.exits(x)` returns all).

    ValueError: the mask does not fit, more than one kind of exits, or exits and no block.
    """

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths, first=False)
        self.places, self.depths = exit_places(submodel), size.depths
        first, last = (
            scale_count(submodel.width, size.planes[0]),
            scale_count(submodel.width, size.widths[-1]),
        )
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = nn.Conv2d(
            network.inputs[0],
            first,
            size.stem.kernel,
            size.stem.stride,
            size.stem.kernel // 2,
            bias=False,
        )
        self.norm = Norm(first)
        self.pool = nn.MaxPool2d(3, 2, 1) if size.stem.pool else nn.Identity()
        self.sections = build_sections(submodel, size, self.places[-1])
        if exit_kind(submodel.features):
            self.exits = early_exits(
                submodel,
                [scale_count(submodel.width, width) for width in size.widths],
                self.answers,
            )
        self.linear = (
            nn.Linear(last, network.outputs) if self.places[-1] == sum(size.depths) else None
        )
        if size.he:
            initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(len(self.places) - 1, self.features_before_exits(x)[-1])

    def answers(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of every exit, shallowest first."""
        return [
            self.answer(index, feature)
            for index, feature in enumerate(self.features_before_exits(x))
        ]

    def answer(self, index: int, feature: Tensor) -> Tensor:
        if self.linear is None or index < len(self.places) - 1:
            return self.exits[str(index)](feature)  # type: ignore[no-any-return]
        return self.linear(feature.mean((2, 3)))  # type: ignore[no-any-return]

    def features_before_exits(self, x: Tensor) -> list[Tensor]:
        """Return the feature before each exit."""
        x = F.relu(self.norm(self.stem(self.standardise(x))))  # [N, w0, H, W], or half of each
        return features_at(self.pool(x), self.sections, self.depths, self.places)


RESNET = Family(
    build=ResNet,
    presets=PRESETS,
    default="18-cifar",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=labelled_tensors,
    features=frozenset({"projection", "scaler", "scaler-always", "steps", *EXITS}),
    help="for images; `10` to `wide-101` with the stem of ImageNet, CIFAR (`-cifar`) or NeFL "
    "(`-nefl`)",
    torchvision=Torchvision(NAMES, convert),
    draws=False,
)
