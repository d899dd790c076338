"""A residual network for windows of sensor signals, [N, channels, time].

Based on the strong baseline for time series of Wang, Yan and Oates (arXiv 1611.06455, section 2.3):
convolutions along time in residual blocks. It uses the basic block of He et al. (arXiv 1512.03385)
instead of theirs: two convolutions of 5 samples, and every section but the first halves the
resolution, so that a small device can afford it. Initialisation is He's for convolutions, PyTorch's
for the linear.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, TypicalData, check_mask, last_linear
from models.layers.basic import Norm, Standardise
from models.submodel import Submodel, scale_count

__all__ = ["RESNET1D"]

KERNEL = 5


@dataclass(frozen=True)
class Size:
    """One size of the network.

    widths: channels per section at width 1
    depths: blocks per section of the largest network
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]


PRESETS: Mapping[str, Size] = {
    "tiny": Size((8, 16, 32), (1, 1, 1)),
    "small": Size((32, 64, 128), (2, 2, 2)),
    "wide": Size((64, 128, 256), (3, 3, 3)),
}


def make_conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv1d:
    made = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


class Block(nn.Module):
    """relu(shortcut + step * (conv, norm, relu, conv, norm)); [N, I, T] -> [N, O, T/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, step: bool) -> None:
        super().__init__()
        self.conv1 = make_conv(inputs, outputs, KERNEL, stride)
        self.norm1 = Norm(outputs)
        self.conv2 = make_conv(outputs, outputs, KERNEL)
        self.norm2 = Norm(outputs)
        self.step = nn.Parameter(torch.ones(1)) if step else None
        # Only the stride decides, never the kept channels: they may be equal by chance in a narrow
        # submodel, and names must not change.
        self.shortcut = make_conv(inputs, outputs, 1, stride) if stride != 1 else None
        self.norm3 = Norm(outputs) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))  # [N, O, T/stride]
        out = self.norm2(self.conv2(out))
        out = out if self.step is None else self.step * out
        short = x if self.shortcut is None or self.norm3 is None else self.norm3(self.shortcut(x))
        return F.relu(short + out)


class ResNet1d(nn.Module):
    """[N, C, T] raw -> logits or standardised values [N, outputs].

    ValueError: the mask does not fit, or drops the first block of a section.
    """

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, preset = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, preset.depths)
        widths = [scale_count(submodel.width, channels) for channels in preset.widths]
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = make_conv(network.inputs[0], widths[0], KERNEL)
        self.norm = Norm(widths[0])
        self.sections = nn.ModuleList()
        channels = widths[0]
        for section, (width, mask) in enumerate(zip(widths, submodel.mask, strict=True)):
            blocks = OrderedDict[str, nn.Module]()
            for index in (index for index, keep in enumerate(mask) if keep):
                blocks[str(index)] = Block(
                    channels,
                    width,
                    2 if section and index == 0 else 1,
                    step="steps" in submodel.features,
                )
                channels = width
            self.sections.append(nn.Sequential(blocks))
        self.linear = nn.Linear(channels, network.outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.standardise(x))))  # [N, w0, T]
        for section in self.sections:
            x = section(x)  # [N, ws, T/2^s]
        return self.linear(x.mean(2))  # type: ignore[no-any-return]


RESNET1D = Family(
    build=ResNet1d,
    presets=PRESETS,
    default="small",
    inputs=2,
    typical=TypicalData((9, 128), 6, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler", "steps"}),
    help="for windows of sensor data",
    draws=False,
)
