"""VGG with batch norm, and HeteroFL's network of four convolutions, which is a VGG without hidden
linear layers.

Simonyan and Zisserman, Very Deep Convolutional Networks (arXiv 1409.1556), with batch norm as in
torchvision's vgg*_bn; FlexiFed uses these for 32x32 images. 3x3 convolutions in sections, a
max-pool after each section, then two hidden linear layers with dropout. All channels and hidden
layers scale in width. In each section any convolution but the first may be dropped: keeping one,
one, two, two and two of VGG-19's gives VGG-11.

A pool is skipped where the feature map is smaller than 2x2, so smaller images pass too, with the
last sections at one resolution. The remaining map, 1x1 for 32x32 and 7x7 for 224x224, is the
positions of the first linear's weight [hidden, channels, positions]. torchvision always pools to
7x7.

heterofl (arXiv 2010.01264, section 4; the authors' code): one convolution per section, no pool
after the last; the linear reads the global mean.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, Tensors, Torchvision, TypicalData, check_mask, last_linear
from models.layers.basic import Norm, Standardise, stack
from models.submodel import Submodel, scale_count

__all__ = ["VGG"]


@dataclass(frozen=True)
class Size:
    """One size of the network.

    widths: channels per section at width 1
    depths: convolutions per section
    hidden: widths of the hidden linear layers; empty for a global mean
    dropout: dropout rate after hidden layers
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    hidden: tuple[int, ...]
    dropout: float = 0.5


FIVE = (64, 128, 256, 512, 512)
HIDDEN = (4096, 4096)
PRESETS: Mapping[str, Size] = {
    "9-small": Size((16, 32, 64), (2, 2, 2), (128, 128), dropout=0.1),  # for a CPU
    "heterofl": Size((64, 128, 256, 512), (1, 1, 1, 1), ()),
    "11": Size(FIVE, (1, 1, 2, 2, 2), HIDDEN),
    "13": Size(FIVE, (2, 2, 2, 2, 2), HIDDEN),
    "16": Size(FIVE, (2, 2, 3, 3, 3), HIDDEN),
    "19": Size(FIVE, (2, 2, 4, 4, 4), HIDDEN),
}
NAMES: Mapping[str, str] = {depth: f"vgg{depth}_bn" for depth in ("11", "13", "16", "19")}


def list_tensors(size: Size) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each layer's name, torchvision's name, and the parts of both. torchvision numbers the
    conv, norm and relu of each block and the pool of each section.
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
    """Return torchvision's tensors under this project's names, for images of 224x224; KeyError if
    one is missing.
    """
    size = PRESETS[preset]
    out = {
        f"{ours}.{part}": state[f"{theirs}.{part}"]
        for ours, theirs, parts in list_tensors(size)
        for part in parts
    }
    return out | {
        "hidden.0.weight": out["hidden.0.weight"].reshape(size.hidden[0], size.widths[-1], -1)
    }


def initialise(net: nn.Module) -> None:
    """Initialise as torchvision: He-normal convolutions by fan out, narrow linear layers, every
    bias 0.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # all have a bias


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
            (scale_count(submodel.width, w) for w in size.widths), submodel.mask, strict=True
        ):
            blocks = OrderedDict[str, nn.Module]()
            for index in (i for i, keep in enumerate(mask) if keep):
                blocks[str(index)] = Block(channels, outputs)
                channels = outputs
            self.sections.append(nn.Sequential(blocks))
        wanted = len(size.widths) if size.hidden else len(size.widths) - 1
        # halvings that leave at least one pixel
        self.pools = min(wanted, min(height, width).bit_length() - 1)
        hidden = [scale_count(submodel.width, w) for w in size.hidden]
        self.hidden = stack(channels, (height >> self.pools) * (width >> self.pools), hidden)
        self.dropout = nn.Dropout(size.dropout)
        self.linear = nn.Linear(hidden[-1] if hidden else channels, network.outputs)
        if network.preset in NAMES:
            initialise(self)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.standardise(x)
        for index, section in enumerate(self.sections):
            x = section(x)
            x = F.max_pool2d(x, 2) if index < self.pools else x  # [N, ws, H/2^s, W/2^s]
        if not self.hidden:
            x = x.mean((2, 3))
        for layer in self.hidden:
            x = self.dropout(F.relu(layer(x)))  # [N, hidden]
        return self.linear(x)  # type: ignore[no-any-return]


VGG = Family(
    build=Vgg,
    presets=PRESETS,
    default="9-small",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler"}),
    help="for images; torchvision's weights are those with batch norm, for 224 x 224 pixels",
    torchvision=Torchvision(NAMES, convert),
    draws=True,
)
