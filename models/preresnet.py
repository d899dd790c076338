"""The pre-activation ResNet for small images, as HeteroFL and FedFA use it. Read it from the bottom up.

He et al., Identity Mappings in Deep Residual Networks (arXiv 1603.05027), two 3x3 convolutions per block; a block that changes channels
or resolution projects its shortcut by a 1x1 convolution of the activated input. Every section but the first halves the resolution.
Initialisation is PyTorch's, batch norm 1 and 0, the linear's bias 0 (HeteroFL).

A block keeps the index that it has in the largest network, so `sections.1.3.conv2.weight` names the same block in every submodel.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Address, Family, Preset
from models.layers import Scaler, Standardise
from models.submodel import Submodel, kept

__all__ = ["PRERESNET", "PreResNet"]

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "small": Preset((16, 32, 64), (4, 4, 4)),  # for a CPU
        "18": Preset((64, 128, 256, 512), (2, 2, 2, 2)),  # HeteroFL's
        "fedfa": Preset((64, 128, 256, 512), (4, 4, 4, 4)),
    }
)


def labelled(submodel: Submodel) -> frozenset[str]:
    return frozenset({"linear.weight", "linear.bias"})


def address(name: str) -> Address | None:
    """sections.1.3.conv2.weight -> (1, 3, "conv2.weight")."""
    if not name.startswith("sections."):
        return None
    _, section, block, rest = name.split(".", 3)
    return int(section), int(block), rest


def check(submodel: Submodel, preset: Preset) -> None:
    """ValueError unless the mask fits the preset and keeps the first block of each section, which carries the change of channels."""
    if tuple(map(len, submodel.mask)) != preset.depths:
        raise ValueError(f"mask {submodel.mask} of submodel {submodel.name}: expected blocks per section {preset.depths}")
    if not all(section[0] for section in submodel.mask):
        raise ValueError(f"submodel {submodel.name} drops the first block of a section; the first one changes the channels and must stay")


class Block(nn.Module):
    """norm, relu, conv, norm, relu, conv, plus a shortcut; [N, I, H, W] -> [N, O, H/stride, W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, scaler: float | None) -> None:
        super().__init__()
        self.scale = nn.Identity() if scaler is None else Scaler(scaler)
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        # The stride alone decides, never the kept channels: they may agree by chance in a narrow submodel, and names must not change.
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.scale(x)))  # [N, I, H, W]
        short = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)  # [N, O, H/stride, W/stride]
        out = self.conv2(F.relu(self.norm2(self.scale(out))))
        return out + short  # type: ignore[no-any-return]


class PreResNet(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, preset = submodel.network, PRESETS[submodel.network.preset]
        check(submodel, preset)
        widths = [kept(submodel.width, channels) for channels in preset.widths]
        scaler = submodel.width if "scaler" in submodel.features else None
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = nn.Conv2d(network.inputs[0], widths[0], 3, 1, 1, bias=False)
        self.sections = nn.ModuleList()
        channels = widths[0]
        for section, (width, mask) in enumerate(zip(widths, submodel.mask, strict=True)):
            blocks = nn.ModuleDict()
            for index, keep in enumerate(mask):
                if keep:
                    blocks[str(index)] = Block(channels, width, 2 if section and index == 0 else 1, scaler)
                    channels = width
            self.sections.append(blocks)
        self.scale = nn.Identity() if scaler is None else Scaler(scaler)
        self.norm = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, network.outputs)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.standardise(x))  # [N, w0, H, W]
        for section in self.sections:
            for block in section.values():  # type: ignore[operator]  # a ModuleDict, which ModuleList's type forgets
                x = block(x)  # [N, ws, H/2^s, W/2^s]
        x = F.relu(self.norm(self.scale(x)))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


PRERESNET = Family(build=PreResNet, presets=PRESETS, default="small", inputs=3, labelled=labelled, address=address)
