"""DenseNet-121, in which each layer reads the outputs of all layers before it.

Huang et al., Densely Connected Convolutional Networks (arXiv 1608.06993), with bottlenecks and
halving transitions, as torchvision's densenet121. "121-cifar" begins with a 3x3 convolution of
stride 1 and no pool, for small images; "121-recipfl", RecipFL's, is the same with a growth of 12.

Width scales stem, growth, bottlenecks and transitions; each tensor over a layer's concatenated
inputs is split in two (`models.layers.densenet_layers`). Depth drops the last layers of a dense
block. A transition outputs as many channels as the whole network's at this width, at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, Tensors, Torchvision, TypicalData, check_mask
from models.layers.basic import Norm, Standardise
from models.layers.densenet_layers import SeenConv, SeenNorm
from models.submodel import Submodel, scale_count

__all__ = ["DENSENET"]

BOTTLENECK = 4  # width of a bottleneck, as a multiple of the growth


@dataclass(frozen=True)
class Size:
    """One size of the network.

    stem: output channels of the stem
    growth: channels that each layer adds
    depths: layers per block
    large: use the stem for large images
    """

    stem: int
    growth: int
    depths: tuple[int, ...]
    large: bool = False

    @property
    def inputs(self) -> tuple[int, ...]:
        """Input channels of each block: a transition halves the channels of the block before it."""
        made = [self.stem]
        for depth in self.depths[:-1]:
            made.append((made[-1] + depth * self.growth) // 2)
        return tuple(made)


DEPTHS = (6, 12, 24, 16)
PRESETS: Mapping[str, Size] = {
    "small": Size(16, 8, (3, 3, 3)),  # for a CPU
    "121": Size(64, 32, DEPTHS, large=True),
    "121-cifar": Size(64, 32, DEPTHS),
    "121-recipfl": Size(24, 12, DEPTHS),
}
NAMES: Mapping[str, str] = {"121": "densenet121"}
NORM = ("weight", "bias", "running_mean", "running_var")


def labelled_tensors(submodel: Submodel) -> frozenset[str]:
    return frozenset({"linear.inputs.weight", "linear.inputs.bias", "linear.grown.weight"})


def check_prefix(submodel: Submodel) -> None:
    """Check that the kept layers of each block are its first ones, since each layer reads all
    before it.

    ValueError: they are not.
    """
    if any(sorted(section, reverse=True) != list(section) for section in submodel.mask):
        raise ValueError(
            f"submodel {submodel.name} drops a layer before one that it keeps; only the last "
            "layers of a dense block can be dropped"
        )


def list_tensors(size: Size) -> Iterator[tuple[str, str, int, int]]:
    """Yield each layer's name, torchvision's name, the input channels, and the number of grown
    layers; 0 and 0 if both networks have the same tensors.
    """
    yield "stem", "features.conv0", 0, 0
    yield "stem_norm", "features.norm0", 0, 0
    for section, (depth, channels) in enumerate(zip(size.depths, size.inputs, strict=True)):
        for layer in range(depth):
            ours, theirs = (
                f"sections.{section}.{layer}",
                f"features.denseblock{section + 1}.denselayer{layer + 1}",
            )
            yield f"{ours}.norm1", f"{theirs}.norm1", channels, layer
            yield f"{ours}.conv1", f"{theirs}.conv1", channels, layer
            yield f"{ours}.norm2", f"{theirs}.norm2", 0, 0
            yield f"{ours}.conv2", f"{theirs}.conv2", 0, 0
        if section < len(size.depths) - 1:
            yield (
                f"transitions.{section}.norm",
                f"features.transition{section + 1}.norm",
                channels,
                depth,
            )
            yield (
                f"transitions.{section}.conv",
                f"features.transition{section + 1}.conv",
                channels,
                depth,
            )
    yield "norm", f"features.norm{len(size.depths) + 1}", size.inputs[-1], size.depths[-1]
    yield "linear", "classifier", size.inputs[-1], size.depths[-1]


def convert(preset: str, state: Tensors) -> dict[str, Tensor]:
    """Return torchvision's tensors under this project's names; KeyError if one is missing.

    torchvision's weight files still write denselayer1.norm.1 for what its network calls
    denselayer1.norm1.
    """
    state = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))\.", r"\1", name): value
        for name, value in state.items()
    }
    out = {"linear.inputs.bias": state["classifier.bias"]}
    for ours, theirs, channels, layers in list_tensors(PRESETS[preset]):
        for part in NORM if "norm" in theirs else ("weight",):
            value = state[f"{theirs}.{part}"]
            if not channels:
                out[f"{ours}.{part}"] = value
                continue
            # axis of the concatenated inputs: a norm's only one, the second of a convolution and of
            # the linear
            axis = min(1, value.dim() - 1)
            inputs, grown = value.tensor_split([channels], axis)
            out[f"{ours}.inputs.{part}"] = (
                inputs[..., None, None] if theirs == "classifier" else inputs
            )
            if layers:
                out[f"{ours}.grown.{part}"] = grown.reshape(*grown.shape[:axis], layers, -1)
    return out


class Layer(nn.Module):
    """norm, relu, 1x1, norm, relu, 3x3 over the concatenated inputs: [N, growth, H, W]."""

    def __init__(self, channels: int, layers: int, growth: int, middle: int) -> None:
        super().__init__()
        self.norm1 = SeenNorm(channels, layers, growth)
        self.conv1 = SeenConv(channels, layers, growth, middle)
        self.norm2 = Norm(middle)
        self.conv2 = nn.Conv2d(middle, growth, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(self.conv2.weight)

    def forward(self, x: Tensor, grown: Sequence[Tensor]) -> Tensor:
        out = self.conv1(self.norm1(x, grown))  # [N, middle, H, W]
        return self.conv2(F.relu(self.norm2(out)))  # type: ignore[no-any-return]


class Transition(nn.Module):
    """norm, relu, 1x1, pool over the concatenated inputs: [N, O, H/2, W/2]."""

    def __init__(self, channels: int, layers: int, growth: int, outputs: int) -> None:
        super().__init__()
        self.norm = SeenNorm(channels, layers, growth)
        self.conv = SeenConv(channels, layers, growth, outputs)

    def forward(self, x: Tensor, grown: Sequence[Tensor]) -> Tensor:
        return F.avg_pool2d(self.conv(self.norm(x, grown)), 2)


class DenseNet(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths)
        check_prefix(submodel)
        widths = [scale_count(submodel.width, channels) for channels in size.inputs]
        growth, middle = (
            scale_count(submodel.width, size.growth),
            scale_count(submodel.width, BOTTLENECK * size.growth),
        )
        layers = [sum(section) for section in submodel.mask]
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        kernel, stride = (7, 2) if size.large else (3, 1)
        self.stem = nn.Conv2d(network.inputs[0], widths[0], kernel, stride, kernel // 2, bias=False)
        # the small stem has no norm: the first layer's norm follows it
        self.stem_norm = Norm(widths[0]) if size.large else None
        self.sections = nn.ModuleList(
            nn.ModuleDict(
                {str(index): Layer(width, index, growth, middle) for index in range(count)}
            )
            for width, count in zip(widths, layers, strict=True)
        )
        self.transitions = nn.ModuleList(
            Transition(width, count, growth, after)
            for width, count, after in zip(widths[:-1], layers[:-1], widths[1:], strict=True)
        )
        self.norm = SeenNorm(widths[-1], layers[-1], growth)
        self.linear = SeenConv(widths[-1], layers[-1], growth, network.outputs, bias=True)
        nn.init.kaiming_normal_(self.stem.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.standardise(x))  # [N, w0, H, W]
        if self.stem_norm is not None:
            x = F.max_pool2d(F.relu(self.stem_norm(x)), 3, 2, 1)  # [N, w0, H/4, W/4]
        grown: list[Tensor] = []
        for index, section in enumerate(self.sections):
            x = self.transitions[index - 1](x, grown) if index else x  # [N, ws, H/2^s, W/2^s]
            grown = []
            # a ModuleDict, unknown to ModuleList's type
            for layer in section.values():  # type: ignore[operator]
                grown.append(layer(x, grown))  # [N, growth, H/2^s, W/2^s]
        seen = [part.mean((2, 3), keepdim=True) for part in self.norm(x, grown)]
        return self.linear(seen).flatten(1)  # type: ignore[no-any-return]


DENSENET = Family(
    build=DenseNet,
    presets=PRESETS,
    default="121-cifar",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=labelled_tensors,
    features=frozenset({"scaler"}),
    help="for images",
    torchvision=Torchvision(NAMES, convert),
    draws=False,
)
