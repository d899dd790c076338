"""VGG with batch norm, and HeteroFL's network of four convolutions, which is one without hidden
linears. Read it from the bottom up.

Simonyan and Zisserman, Very Deep Convolutional Networks (arXiv 1409.1556), with batch norm as in
torchvision's vgg*_bn; FlexiFed's for 32x32 images are these. 3x3 convolutions in sections, a
max-pool after each, then two hidden linears with dropout. All channels and hidden linears scale in
width, and of each section all convolutions but the first may be dropped: of VGG-19, one, one, two,
two, two are VGG-11.

A pool comes only where it finds at least 2x2, so smaller images pass too, the last sections at one
resolution. What is left, 1x1 of 32x32 and 7x7 of 224x224, are the positions of the first linear's
weight [hidden, channels, positions]. torchvision pools to 7x7 in any case.

heterofl (arXiv 2010.01264, section 4; the authors' code): one convolution per section, no pool
after the last, whose mean goes to the linear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, Tensors, Torchvision, check_mask
from models.layers.basic import Norm, Standardise
from models.layers.flattened import stack
from models.submodel import Submodel, kept

__all__ = ["VGG"]


@dataclass(frozen=True)
class Size:
    """widths: channels per section at width 1. depths: convolutions per section. hidden: widths of
    the hidden linears; none: a global mean.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    hidden: tuple[int, ...]
    dropout: float = 0.5


FIVE = (64, 128, 256, 512, 512)
HIDDEN = (4096, 4096)
PRESETS: Mapping[str, Size] = MappingProxyType(
    {
        "9-small": Size((16, 32, 64), (2, 2, 2), (128, 128), dropout=0.1),  # for a CPU
        "heterofl": Size((64, 128, 256, 512), (1, 1, 1, 1), ()),
        "11": Size(FIVE, (1, 1, 2, 2, 2), HIDDEN),
        "13": Size(FIVE, (2, 2, 2, 2, 2), HIDDEN),
        "16": Size(FIVE, (2, 2, 3, 3, 3), HIDDEN),
        "19": Size(FIVE, (2, 2, 4, 4, 4), HIDDEN),
    }
)
NAMES: Mapping[str, str] = MappingProxyType(
    {depth: f"vgg{depth}_bn" for depth in ("11", "13", "16", "19")}
)


def names(size: Size) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Our layer, torchvision's, and the parts of both: torchvision numbers conv, norm, relu of each
    block and the pool of each section.
    """
    both, norm = ("weight", "bias"), ("weight", "bias", "running_mean", "running_var")
    index = 0
    for section, depth in enumerate(size.depths):
        for block in range(depth):
            yield f"sections.{section}.{block}.conv", f"features.{index}", both
            yield f"sections.{section}.{block}.norm", f"features.{index + 1}", norm
            index += 3
        index += 1
    yield from (
        ("hidden.0", "classifier.0", both),
        ("hidden.1", "classifier.3", both),
        ("linear", "classifier.6", both),
    )


def convert(preset: str, state: Tensors) -> dict[str, Tensor]:
    """torchvision's tensors under our names, for images of 224x224; KeyError where one is
    missing.
    """
    size = PRESETS[preset]
    out = {
        f"{ours}.{part}": state[f"{theirs}.{part}"]
        for ours, theirs, parts in names(size)
        for part in parts
    }
    return out | {
        "hidden.0.weight": out["hidden.0.weight"].reshape(size.hidden[0], size.widths[-1], -1)
    }


def initialise(net: nn.Module) -> None:
    """torchvision's start: convolutions by He et al. over their outputs, linears narrow, every bias
    0.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # all of them have one


class Block(nn.Module):
    """conv, norm, relu; [N, I, H, W] -> [N, O, H, W]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.norm = Norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Vgg(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths)
        channels, height, width = network.inputs
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.sections = nn.ModuleList()
        for outputs, mask in zip(
            (kept(submodel.width, w) for w in size.widths), submodel.mask, strict=True
        ):
            blocks = nn.ModuleDict()
            for index in (i for i, keep in enumerate(mask) if keep):
                blocks[str(index)] = Block(channels, outputs)
                channels = outputs
            self.sections.append(blocks)
        wanted = len(size.widths) if size.hidden else len(size.widths) - 1
        # halvings that leave at least one
        self.pools = min(wanted, min(height, width).bit_length() - 1)
        hidden = [kept(submodel.width, w) for w in size.hidden]
        self.hidden = stack(channels, (height >> self.pools) * (width >> self.pools), hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.linear = nn.Linear(hidden[-1] if hidden else channels, network.outputs)
        if network.preset in NAMES:
            initialise(self)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.standardise(x)
        for index, section in enumerate(self.sections):
            # a ModuleDict, which ModuleList's type forgets
            for block in section.values():  # type: ignore[operator]
                x = block(x)
            x = F.max_pool2d(x, 2) if index < self.pools else x  # [N, ws, H/2^s, W/2^s]
        if not self.hidden:
            x = x.mean((2, 3))
        for layer in self.hidden:
            x = self.dropout(F.relu(layer(x)))  # [N, hidden]
        return self.linear(x)  # type: ignore[no-any-return]


VGG = Family(
    build=Vgg, presets=PRESETS, default="9-small", inputs=3, torchvision=Torchvision(NAMES, convert)
)
