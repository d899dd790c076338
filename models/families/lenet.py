"""LeNet-5 with batch norm, as RecipFL uses it on MNIST.

LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998): two 5x5 convolutions
without padding, each with an average pool, then hidden linear layers. RecipFL (the authors' code)
adds batch norm after each convolution, replaces tanh with relu, and takes 28x28 images unpadded.
"5-scaled" is the separate network that RecipFL gives its weak devices: 3 channels in the second
convolution and one hidden linear layer.

Width scales the convolutions' channels and the hidden layers. No layer can be dropped, since each
changes the number of channels: the two convolutions are two sections of one block. Initialisation
is PyTorch's, batch norm 1 and 0, the last linear's bias 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, TypicalData, check_mask, last_linear
from models.layers.basic import Norm, Standardise, stack
from models.submodel import Submodel, scale_count

__all__ = ["LENET"]


@dataclass(frozen=True)
class Size:
    """One size of the network.

    widths: channels of the two convolutions at width 1
    hidden: widths of the hidden linear layers
    """

    widths: tuple[int, int]
    hidden: tuple[int, ...]
    depths: tuple[int, int] = (1, 1)


PRESETS: Mapping[str, Size] = {"5": Size((6, 16), (120, 84)), "5-scaled": Size((6, 3), (84,))}


def measure_side(side: int) -> int:
    """Return the side length after two blocks: 28 -> 24 -> 12 -> 8 -> 4."""
    return ((side - 4) // 2 - 4) // 2


class Block(nn.Module):
    """conv, norm, relu, pool; [N, I, H, W] -> [N, O, (H - 4)/2, (W - 4)/2]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 5)
        self.norm = Norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(F.relu(self.norm(self.conv(x))), 2)


class LeNet(nn.Module):
    """Logits [N, classes] of raw images [N, C, H, W], uint8 or float, of at least 16x16."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths)
        channels, height, width = network.inputs
        if min(height, width) < 16:
            raise ValueError(
                f"images of {height}x{width} are too small; LeNet-5 requires at least 16x16"
            )
        first, second = (scale_count(submodel.width, w) for w in size.widths)
        hidden = [scale_count(submodel.width, w) for w in size.hidden]
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.sections = nn.ModuleList(
            [nn.Sequential(Block(channels, first)), nn.Sequential(Block(first, second))]
        )
        self.hidden = stack(second, measure_side(height) * measure_side(width), hidden)
        self.linear = nn.Linear(hidden[-1], network.outputs)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.standardise(x)
        for section in self.sections:
            x = section(x)  # [N, 6, 12, 12], then [N, 16, 4, 4]
        for layer in self.hidden:
            x = F.relu(layer(x))  # [N, 120], then [N, 84]
        return self.linear(x)  # type: ignore[no-any-return]


LENET = Family(
    build=LeNet,
    presets=PRESETS,
    default="5",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler"}),
    help="for images",
    draws=False,
)
