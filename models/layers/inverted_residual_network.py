"""The network of inverted residuals that MobileNetV2 and EfficientNetV2 share.

Sandler et al., MobileNetV2 (arXiv 1801.04381): a block expands its input with a 1x1 convolution,
filters each channel separately, and projects back without activation. Tan and Le, EfficientNetV2
(arXiv 2104.00298): early blocks expand with one full 3x3 convolution instead, late ones squeeze and
excite (Hu et al., arXiv 1709.01507). Initialisation is torchvision's.

Every group of channels scales with the kept width except the last convolution's: for multipliers
below one the paper keeps it (MobileNetV2, section 5.1). The layers of a block, and whether it adds
its input, depend on the channels of the largest network and never on the kept ones, which may be
equal by chance.

Dropout and stochastic depth draw from torch's global generator, in training only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import check_mask
from models.layers.basic import Linear, Norm, Standardise
from models.submodel import Submodel, scale_count

__all__ = ["Inverted", "Section", "Size", "Style", "rename_tensors"]

DROPOUT = 0.2  # before the classifier, in both of torchvision's networks
SQUEEZED = 4  # input channels of a block per channel of its squeeze


@dataclass(frozen=True)
class Section:
    """Blocks of one shape.

    expansion: hidden channels of a block per input channel
    channels: output channels at width 1
    depth: number of blocks
    stride: of the first block
    fused: expand with one 3x3 convolution instead of a 1x1 and a depthwise 3x3
    squeeze: squeeze and excite
    """

    expansion: int
    channels: int
    depth: int
    stride: int
    fused: bool = False
    squeeze: bool = False


@dataclass(frozen=True)
class Size:
    """One size of the network.

    stem: channels of the first convolution at width 1
    stride: stride of the first convolution
    sections: sections in order
    last: channels of the last convolution, at every width
    """

    stem: int
    stride: int
    sections: tuple[Section, ...]
    last: int = 1280

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(section.depth for section in self.sections)


@dataclass(frozen=True)
class Style:
    """Settings that all layers of a family share.

    activation: of every convolution but a block's last
    eps: of every norm
    drop: probability that training skips the network's last block
    """

    activation: type[nn.Module]
    eps: float = 1e-5
    drop: float = 0.0


def rename_tensors(state: Mapping[str, Tensor], modules: Mapping[str, str]) -> dict[str, Tensor]:
    """Return torchvision's tensors under this project's names.

    modules: torchvision's module name -> this project's
    KeyError: a tensor belongs to none of the modules.
    """
    known = {name: name.rpartition(".") for name in state}
    if odd := [name for name, (module, _, _) in known.items() if module not in modules]:
        raise KeyError(odd[0])
    return {
        f"{modules[module]}.{leaf}": state[name]
        for name, (module, _, leaf) in known.items()
        if leaf != "num_batches_tracked"
    }


class Drop(nn.Module):
    """Stochastic depth (arXiv 1603.09382): in training, drop each example's residual with a
    probability, and scale up the kept ones.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        keep = torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(
            1 - self.rate
        )
        return x * keep / (1 - self.rate)


class Conv(nn.Module):
    """conv, norm, activation; [N, I, H, W] -> [N, O, H/stride, W/stride]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        style: Style,
        *,
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        self.norm = Norm(outputs, style.eps)
        self.activation = style.activation()
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))  # type: ignore[no-any-return]


class Squeeze(nn.Module):
    """Squeeze and excitation: x times a factor per channel, computed by two layers from the
    channels' means; [N, C, H, W] -> [N, C, H, W].
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.down = Linear(channels, hidden)
        self.up = Linear(hidden, channels)
        for layer in (self.down, self.up):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3))))))  # [N, C]
        return x * share[:, :, None, None]


@dataclass(frozen=True)
class Place:
    """Attributes that depend on a block's place in the network.

    inputs: input channels at width 1
    stride: of the block
    rate: probability of stochastic depth
    """

    inputs: int
    stride: int = 1
    rate: float = 0.0


class Block(nn.Module):
    """An inverted residual, plus its input unless the block strides or changes channels; [N, I, H,
    W] -> [N, O, H/stride, W/stride].

    With steps (NeFL), the residual has a learnable factor.
    """

    def __init__(
        self, section: Section, place: Place, width: float, style: Style, *, steps: bool
    ) -> None:
        super().__init__()
        inputs, stride = place.inputs, place.stride
        fan, outputs = scale_count(width, inputs), scale_count(width, section.channels)
        hidden = scale_count(width, section.expansion * inputs)
        layers: dict[str, nn.Module] = {}
        if section.fused:
            # no expansion: the 3x3 convolution is the whole block
            alone = section.expansion == 1
            layers["expand"] = Conv(fan, outputs if alone else hidden, 3, style, stride=stride)
        else:
            alone = False
            if section.expansion > 1:
                layers["expand"] = Conv(fan, hidden, 1, style)
            layers["depthwise"] = Conv(hidden, hidden, 3, style, stride=stride, groups=hidden)
        if section.squeeze:
            layers["squeeze"] = Squeeze(hidden, scale_count(width, max(1, inputs // SQUEEZED)))
        if not alone:
            layers["project"] = Conv(hidden, outputs, 1, replace(style, activation=nn.Identity))
        self.residual = nn.Sequential(OrderedDict(layers))
        self.adds = stride == 1 and inputs == section.channels
        self.drop = Drop(place.rate)
        self.step = nn.Parameter(torch.ones(1)) if steps and self.adds else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.residual(x)  # [N, O, H/stride, W/stride]
        if not self.adds:
            return out  # type: ignore[no-any-return]
        return x + self.drop(out if self.step is None else self.step * out)  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float."""

    def __init__(self, submodel: Submodel, size: Size, style: Style) -> None:
        super().__init__()
        network, width, steps = submodel.network, submodel.width, "steps" in submodel.features
        check_mask(submodel, size.depths)
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = Conv(
            network.inputs[0], scale_count(width, size.stem), 3, style, stride=size.stride
        )
        self.sections = nn.ModuleList()
        # before: number of blocks of the largest network before a section, which sets the drop rate
        inputs, before = size.stem, 0
        for section, mask in zip(size.sections, submodel.mask, strict=True):
            blocks = OrderedDict[str, nn.Module]()
            for index, keep in enumerate(mask):
                if keep:
                    rate = style.drop * (before + index) / sum(size.depths)
                    place = Place(inputs, section.stride if index == 0 else 1, rate)
                    blocks[str(index)] = Block(section, place, width, style, steps=steps)
                inputs = section.channels
            before += len(mask)
            self.sections.append(nn.Sequential(blocks))
        self.last = Conv(scale_count(width, inputs), size.last, 1, style)
        self.dropout = nn.Dropout(DROPOUT)
        self.linear = nn.Linear(size.last, network.outputs)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.standardise(x))  # [N, stem, H/stride, W/stride]
        for section in self.sections:
            x = section(x)  # [N, ws, Hs, Ws]
        x = self.last(x).mean((2, 3))  # [N, last]
        return self.linear(self.dropout(x))  # type: ignore[no-any-return]
