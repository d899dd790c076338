"""A residual perceptron for tables, windows of signals and small images.

Inputs of any shape are flattened, and keep their full size in every submodel; the hidden layers are
equally wide. The first layer takes the input. The others are the blocks of one section, x + step *
norm(linear(x)) before a relu (He et al., arXiv 1512.03385, with linear layers for convolutions);
any of them may be dropped. NeFL's learnable steps are 1 unless requested. Initialisation is
PyTorch's, batch norm 1 and 0, the last linear's bias 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, TypicalData, check_mask, last_linear
from models.layers.basic import Norm, Standardise
from models.submodel import Submodel, scale_count

__all__ = ["MLP"]


@dataclass(frozen=True)
class Size:
    """One size of the network.

    width: of every hidden layer at width 1
    depths: hidden layers after the first, in one section
    """

    width: int
    depths: tuple[int]


PRESETS: Mapping[str, Size] = {"small": Size(64, (2,)), "large": Size(256, (3,))}


class Block(nn.Module):
    """linear, norm, plus the input, relu; [N, H] -> [N, H]."""

    def __init__(self, hidden: int, *, steps: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden, bias=False)
        self.norm = Norm(hidden)
        self.step = nn.Parameter(torch.ones(1)) if steps else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.linear(x))
        return F.relu(x + (out if self.step is None else self.step * out))


class Mlp(nn.Module):
    """Logits or standardised values [N, outputs] of raw examples [N, ...]."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths, first=False)
        hidden, steps = scale_count(submodel.width, size.width), "steps" in submodel.features
        blocks = {
            str(index): Block(hidden, steps=steps)
            for index, keep in enumerate(submodel.mask[0])
            if keep
        }
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.stem = nn.Linear(prod(network.inputs), hidden, bias=False)
        self.norm = Norm(hidden)
        self.sections = nn.ModuleList([nn.Sequential(OrderedDict(blocks))])
        self.linear = nn.Linear(hidden, network.outputs)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.standardise(x).flatten(1)  # [N, inputs]
        x = F.relu(self.norm(self.stem(x)))  # [N, hidden]
        return self.linear(self.sections[0](x))  # type: ignore[no-any-return]


MLP = Family(
    build=Mlp,
    presets=PRESETS,
    default="small",
    inputs=0,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler", "steps"}),
    help="for tables",
    draws=False,
)
