"""The pre-activation ResNet for small images, as HeteroFL and FedFA use it.

He et al., Identity Mappings in Deep Residual Networks (arXiv 1603.05027), two 3x3 convolutions per
block. A block that changes channels or resolution projects its shortcut with a 1x1 convolution of
the activated input. Every section but the first halves the resolution. Initialisation is PyTorch's,
batch norm 1 and 0, the linear's bias 0 (HeteroFL).

With exits (`models.layers.early_exits`) a submodel ends at its last exit and has no later blocks.
An exit first normalises and activates its feature, with its own norm: a block's output is a sum
without activation. "steps": the residual of a block is multiplied by a learnable number, initially
1 (NeFL, arXiv 2308.07761, section III).

A block keeps its index in the largest network, so `sections.1.3.conv2.weight` names the same block
in every submodel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, TypicalData, check_mask
from models.layers.basic import Norm, Standardise
from models.layers.early_exits import (
    EXITS,
    early_exits,
    exit_kind,
    exit_places,
    features_at,
    labelled_tensors,
)
from models.submodel import Submodel, scale_count

__all__ = ["PRERESNET"]


@dataclass(frozen=True)
class Size:
    """One size of the network.

    widths: channels per section at width 1
    depths: blocks per section of the largest network
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]


FOUR = (64, 128, 256, 512)
PRESETS: Mapping[str, Size] = {
    "small": Size((16, 32, 64), (4, 4, 4)),  # for a CPU
    "10": Size(FOUR, (1, 1, 1, 1)),
    "14": Size(FOUR, (1, 1, 2, 2)),
    "18": Size(FOUR, (2, 2, 2, 2)),  # HeteroFL's
    "22": Size(FOUR, (2, 2, 3, 3)),
    "26": Size(FOUR, (3, 3, 3, 3)),
    "34": Size(FOUR, (3, 4, 6, 3)),
    "fedfa": Size(FOUR, (4, 4, 4, 4)),
}


class Block(nn.Module):
    """norm, relu, conv, norm, relu, conv, plus a shortcut; [N, I, H, W] -> [N, O, H/stride,
    W/stride].

    step: multiply the residual by a learnable number
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, step: bool) -> None:
        super().__init__()
        self.norm1 = Norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = Norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        # Only the stride decides, never the kept channels: they may be equal by chance in a narrow
        # submodel, and names must not change.
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 else None
        self.step = nn.Parameter(torch.ones(1)) if step else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))  # [N, I, H, W]
        short = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)  # [N, O, H/stride, W/stride]
        out = self.conv2(F.relu(self.norm2(out)))
        return short + (out if self.step is None else self.step * out)  # type: ignore[no-any-return]


def build_sections(submodel: Submodel, size: Size, end: int) -> nn.ModuleList:
    """Build the first `end` blocks, named by their indices in the largest network."""
    made, channels, number = nn.ModuleList(), scale_count(submodel.width, size.widths[0]), 0
    step = "steps" in submodel.features
    for section, (width, mask) in enumerate(zip(size.widths, submodel.mask, strict=True)):
        blocks = nn.ModuleDict()
        for index, keep in enumerate(mask):
            number += 1
            if keep and number <= end:
                blocks[str(index)] = Block(
                    channels,
                    scale_count(submodel.width, width),
                    2 if section and index == 0 else 1,
                    step=step,
                )
                channels = scale_count(submodel.width, width)
        made.append(blocks)
    return made


class PreResNet(nn.Module):
    """Outputs [N, outputs] of raw images [N, C, H, W], uint8 or float; with exits, those of the
    deepest one (`net.exits(x)` returns all).

    ValueError: the mask does not fit, or drops the first block of a section before the last exit;
        more than one kind of exits, or no block.
    """

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        self.places, self.depths = exit_places(submodel), size.depths
        check_mask(submodel, size.depths, end=self.places[-1])
        widths = [scale_count(submodel.width, channels) for channels in size.widths]
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = nn.Conv2d(network.inputs[0], widths[0], 3, 1, 1, bias=False)
        self.sections = build_sections(submodel, size, self.places[-1])
        if exit_kind(submodel.features):
            self.exits = early_exits(submodel, widths, self.answers)
            ends = tuple(accumulate(size.depths))
            self.norms = nn.ModuleDict(
                {
                    index: Norm(widths[bisect_left(ends, self.places[int(index)])])
                    for index in self.exits
                }
            )
        whole = self.places[-1] == sum(size.depths)
        self.norm = Norm(widths[-1]) if whole else None
        self.linear = nn.Linear(widths[-1], network.outputs) if whole else None
        if self.linear is not None:
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(len(self.places) - 1, self.features_before_exits(x)[-1])

    def answers(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of every exit, shallowest first."""
        return [
            self.answer(index, feature)
            for index, feature in enumerate(self.features_before_exits(x))
        ]

    def answer(self, index: int, feature: Tensor) -> Tensor:
        if self.norm is None or self.linear is None or index < len(self.places) - 1:
            return self.exits[str(index)](F.relu(self.norms[str(index)](feature)))  # type: ignore[no-any-return]
        return self.linear(F.relu(self.norm(feature)).mean((2, 3)))  # type: ignore[no-any-return]

    def features_before_exits(self, x: Tensor) -> list[Tensor]:
        """Return the feature before each exit, not activated."""
        x = self.stem(self.standardise(x))  # [N, w0, H, W]
        return features_at(x, self.sections, self.depths, self.places)


PRERESNET = Family(
    build=PreResNet,
    presets=PRESETS,
    default="small",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=labelled_tensors,
    features=frozenset({"projection", "scaler", "scaler-always", "steps", *EXITS}),
    help="for images",
    draws=False,
)
