"""MobileNetV2, made of inverted residuals with ReLU6 (Sandler et al., arXiv 1801.04381, table 2).
Its network is in `models.layers.inverted_residual_network`.

All but the last convolution scale in width; the five sections of more than one block scale in
depth. For small images ("v2-cifar", as in the MobileNetV2 of FedFA, arXiv 2406.09877) the stem and
the section of 24 channels keep the resolution; the tensors are the same, so torchvision's weights
fit both.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from models.family import Family, Torchvision, TypicalData, last_linear
from models.layers.inverted_residual_network import Inverted, Section, Size, Style, rename_tensors
from models.submodel import Submodel

__all__ = ["MOBILENET"]

STYLE = Style(nn.ReLU6)


def list_sections(stride: int) -> tuple[Section, ...]:
    """Return the paper's sections.

    stride: of the section with 24 channels
    """
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, stride),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    return tuple(Section(*row) for row in rows)


TINY = (Section(1, 8, 1, 1), Section(6, 16, 3, 1), Section(6, 24, 3, 2), Section(6, 32, 3, 2))
PRESETS: Mapping[str, Size] = {
    "tiny": Size(16, 1, TINY, 128),  # for a CPU
    "v2-cifar": Size(32, 1, list_sections(1)),
    "v2": Size(32, 2, list_sections(2)),  # ImageNet's
}


def build(submodel: Submodel) -> nn.Module:
    net = Inverted(submodel, PRESETS[submodel.network.preset], STYLE)
    nn.init.normal_(net.linear.weight, 0, 0.01)
    return net


def convert(preset: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert torchvision's mobilenet_v2 to this project's tensors. torchvision numbers blocks
    through all sections, and the layers of a block.
    """
    blocks = [(s, b) for s, depth in enumerate(PRESETS[preset].depths) for b in range(depth)]
    modules = {"classifier.1": "linear"}
    for theirs, ours in (("features.0", "stem"), (f"features.{len(blocks) + 1}", "last")):
        modules |= {f"{theirs}.0": f"{ours}.conv", f"{theirs}.1": f"{ours}.norm"}
    for place, (s, b) in enumerate(blocks, 1):
        theirs, ours = f"features.{place}.conv", f"sections.{s}.{b}.residual"
        wide = ("depthwise",) if s == 0 else ("expand", "depthwise")
        for i, layer in enumerate(wide):
            modules |= {
                f"{theirs}.{i}.0": f"{ours}.{layer}.conv",
                f"{theirs}.{i}.1": f"{ours}.{layer}.norm",
            }
        modules |= {
            f"{theirs}.{len(wide)}": f"{ours}.project.conv",
            f"{theirs}.{len(wide) + 1}": f"{ours}.project.norm",
        }
    return rename_tensors(state, modules)


MOBILENET = Family(
    build=build,
    presets=PRESETS,
    default="v2-cifar",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler", "steps"}),
    help="for images",
    torchvision=Torchvision({"v2": "mobilenet_v2", "v2-cifar": "mobilenet_v2"}, convert),
    draws=True,
)
