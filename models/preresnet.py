"""The pre-activation ResNet for small images, as HeteroFL and FedFA use it. Read it from the bottom up.

He et al., Identity Mappings in Deep Residual Networks (arXiv 1603.05027), two 3x3 convolutions per block; a block that changes channels
or resolution projects its shortcut by a 1x1 convolution of the activated input. Every section but the first halves the resolution.
Initialisation is PyTorch's, batch norm 1 and 0, the linear's bias 0 (HeteroFL).

A block keeps the index that it has in the largest network, so `sections.1.3.conv2.weight` names the same block in every submodel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, check_mask
from models.layers import Norm, Standardise
from models.submodel import Submodel, kept

__all__ = ["PRERESNET"]


@dataclass(frozen=True)
class Size:
    """widths: channels per section at width 1. depths: blocks per section of the largest network."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]


FOUR = (64, 128, 256, 512)
PRESETS: Mapping[str, Size] = MappingProxyType(
    {
        "small": Size((16, 32, 64), (4, 4, 4)),  # for a CPU
        "10": Size(FOUR, (1, 1, 1, 1)),
        "14": Size(FOUR, (1, 1, 2, 2)),
        "18": Size(FOUR, (2, 2, 2, 2)),  # HeteroFL's
        "22": Size(FOUR, (2, 2, 3, 3)),
        "26": Size(FOUR, (3, 3, 3, 3)),
        "34": Size(FOUR, (3, 4, 6, 3)),
        "fedfa": Size(FOUR, (4, 4, 4, 4)),
    }
)


class Block(nn.Module):
    """norm, relu, conv, norm, relu, conv, plus a shortcut; [N, I, H, W] -> [N, O, H/stride, W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = Norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = Norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        # The stride alone decides, never the kept channels: they may agree by chance in a narrow submodel, and names must not change.
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))  # [N, I, H, W]
        short = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)  # [N, O, H/stride, W/stride]
        out = self.conv2(F.relu(self.norm2(out)))
        return out + short  # type: ignore[no-any-return]


class PreResNet(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, preset = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, preset.depths)
        widths = [kept(submodel.width, channels) for channels in preset.widths]
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = nn.Conv2d(network.inputs[0], widths[0], 3, 1, 1, bias=False)
        self.sections = nn.ModuleList()
        channels = widths[0]
        for section, (width, mask) in enumerate(zip(widths, submodel.mask, strict=True)):
            blocks = nn.ModuleDict()
            for index, keep in enumerate(mask):
                if keep:
                    blocks[str(index)] = Block(channels, width, 2 if section and index == 0 else 1)
                    channels = width
            self.sections.append(blocks)
        self.norm = Norm(channels)
        self.linear = nn.Linear(channels, network.outputs)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.standardise(x))  # [N, w0, H, W]
        for section in self.sections:
            for block in section.values():  # type: ignore[operator]  # a ModuleDict, which ModuleList's type forgets
                x = block(x)  # [N, ws, H/2^s, W/2^s]
        x = F.relu(self.norm(x))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


PRERESNET = Family(build=PreResNet, presets=PRESETS, default="small", inputs=3)
