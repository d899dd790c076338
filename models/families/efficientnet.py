"""EfficientNetV2-S, made of fused and plain inverted residuals with squeeze and excitation, and
SiLU (Tan and Le, arXiv 2104.00298, table 4).

Its network is in `models.layers.inverted_residual_network`. All but the last convolution scale in
width, all six sections in depth. For small images ("v2s-cifar", as in the EfficientNetV2 of FedFA,
arXiv 2406.09877) the stem and the section of 48 channels keep the resolution; the tensors are the
same, so torchvision's weights fit both. Stochastic depth follows torchvision: the drop rate of a
block grows with its depth in the largest network, and is the same in every submodel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from models.family import Family, Torchvision, TypicalData, last_linear
from models.layers.inverted_residual_network import Inverted, Section, Size, Style, rename_tensors
from models.submodel import Submodel

__all__ = ["EFFICIENTNET"]

STYLE = Style(nn.SiLU, eps=1e-3, drop=0.2)


def make_fused(expansion: int, channels: int, depth: int, stride: int) -> Section:
    return Section(expansion, channels, depth, stride, fused=True)


def make_plain(expansion: int, channels: int, depth: int, stride: int) -> Section:
    return Section(expansion, channels, depth, stride, squeeze=True)


def list_sections(stride: int) -> tuple[Section, ...]:
    """Return the paper's sections.

    stride: of the section with 48 channels
    """
    early = (
        make_fused(1, 24, 2, 1),
        make_fused(4, 48, 4, stride),
        make_fused(4, 64, 4, 2),
    )
    return (
        *early,
        make_plain(4, 128, 6, 2),
        make_plain(6, 160, 9, 1),
        make_plain(6, 256, 15, 2),
    )


PRESETS: Mapping[str, Size] = {
    # for a CPU
    "tiny": Size(
        8,
        1,
        (
            make_fused(1, 8, 2, 1),
            make_fused(4, 16, 3, 1),
            make_plain(4, 24, 3, 2),
            make_plain(6, 32, 3, 2),
        ),
        128,
    ),
    "v2s-cifar": Size(24, 1, list_sections(1)),
    "v2s": Size(24, 2, list_sections(2)),  # ImageNet's
}


def build(submodel: Submodel) -> nn.Module:
    net = Inverted(submodel, PRESETS[submodel.network.preset], STYLE)
    bound = 1 / math.sqrt(net.linear.out_features)
    nn.init.uniform_(net.linear.weight, -bound, bound)
    return net


def convert(preset: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert torchvision's efficientnet_v2_s to this project's tensors. torchvision numbers the
    layers of a block, and squeezes with 1x1 convolutions.
    """
    sections = PRESETS[preset].sections
    modules = {"classifier.1": "linear"}
    for theirs, ours in (("features.0", "stem"), (f"features.{len(sections) + 1}", "last")):
        modules |= {f"{theirs}.0": f"{ours}.conv", f"{theirs}.1": f"{ours}.norm"}
    for s, section in enumerate(sections):
        layers = (
            ("expand", "project")
            if section.fused
            else ("expand", "depthwise", "squeeze", "project")
        )
        for b in range(section.depth):
            for i, layer in enumerate(layers):
                theirs, ours = (
                    f"features.{s + 1}.{b}.block.{i}",
                    f"sections.{s}.{b}.residual.{layer}",
                )
                leaves = (
                    {"fc1": "down", "fc2": "up"}
                    if layer == "squeeze"
                    else {"0": "conv", "1": "norm"}
                )
                modules |= {f"{theirs}.{leaf}": f"{ours}.{mine}" for leaf, mine in leaves.items()}
    return {
        name: value.flatten(1) if name.endswith(("down.weight", "up.weight")) else value
        for name, value in rename_tensors(state, modules).items()
    }


EFFICIENTNET = Family(
    build=build,
    presets=PRESETS,
    default="v2s-cifar",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler", "steps"}),
    help="for images",
    torchvision=Torchvision(
        {"v2s": "efficientnet_v2_s", "v2s-cifar": "efficientnet_v2_s"}, convert
    ),
    draws=True,
)
