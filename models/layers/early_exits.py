"""Early exits of networks for images: heads that turn the features after a block into logits, so
that a submodel may end there.

"exits": DepthFL (Kim et al., ICLR 2023): attention on the feature, separable convolutions down to
the last section's channels, linear.
"exits-conv": ScaleFL (Ilhan et al., CVPR 2023): three 3x3 convolutions at the block's own channels,
linear. These exits do not sit after sections but at 30, 38 and 46 54ths of all blocks.
"exits-adapter": RecipFL's network of one section (3x3 convolution with one stride of 2 per
remaining section, linear), and NeFL's DepthFL baseline (arXiv 2308.07761, section V-A2): a
downsampling layer and its own linear layer for each depth.

Each ends in global average pooling. An exit covers a range of blocks: those after the exit before
it, up to its own place. A submodel ends at the exit whose range holds its deepest kept block, and
owns that exit and all before it. The network's own head comes after all blocks. Families with exits
differ only in how they process a feature before an exit reads it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count, pairwise

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Norm
from models.submodel import Submodel

__all__ = [
    "EXITS",
    "Exits",
    "early_exits",
    "exit_kind",
    "exit_places",
    "features_at",
    "labelled_tensors",
    "levels",
    "run_exits",
]

SHARES = (30 / 54, 38 / 54, 46 / 54)  # positions as fractions of the blocks of ScaleFL's ResNet110


class Exits(nn.ModuleDict):
    """`net.exits(x)` returns the logits of every exit of a network from its raw input, shallow
    first; its tensors are named `exits.INDEX...`.
    """

    def __init__(
        self, heads: Mapping[str, nn.Module], answers: Callable[[Tensor], list[Tensor]]
    ) -> None:
        """Make the exits.

        answers: the network's own method that returns all logits; it is not part of the state
        """
        super().__init__(heads)
        self.answers = answers

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.answers(x)


class Separable(nn.Sequential):
    """Two depthwise separable 3x3 convolutions, the first with stride 2; [N, I, H, W] -> [N, O,
    H/2, W/2].
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, 2, 1, groups=inputs, bias=False),
            nn.Conv2d(inputs, inputs, 1, bias=False),
            Norm(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            Norm(outputs),
            nn.ReLU(),
        )


class Attentive(nn.Module):
    """DepthFL's exit: the feature times an attention map, then one Separable per remaining section;
    [N, widths[0], H, W] -> logits.
    """

    def __init__(self, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(Separable(widths[0], widths[0]), Norm(widths[0]), nn.ReLU())
        self.bottleneck = nn.Sequential(*(Separable(i, o) for i, o in pairwise(widths)))
        self.linear = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.attention(x)  # [N, w, H/2, W/2], rounded up
        seen = F.interpolate(seen, size=x.shape[2:], mode="bilinear", align_corners=False).sigmoid()
        x = self.bottleneck(x * seen)  # [N, last width, as small as the last section]
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


class Convolved(nn.Module):
    """ScaleFL's exit: three 3x3 convolutions; [N, widths[0], H, W] -> logits."""

    def __init__(self, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        width = widths[0]
        self.convs = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), Norm(width), nn.ReLU())
                for _ in range(3)
            )
        )
        self.linear = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.convs(x).mean((2, 3)))  # type: ignore[no-any-return]


class Adapter(nn.Module):
    """RecipFL's exit: one 3x3 convolution to the last section's channels and resolution; [N,
    widths[0], H, W] -> logits.
    """

    def __init__(self, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(widths[0], widths[-1], 3, 2 ** (len(widths) - 1), 1, bias=False)
        self.norm = Norm(widths[-1])
        self.linear = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.relu(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


EXITS: Mapping[str, Callable[[Sequence[int], int], nn.Module]] = {
    # (kept channels of the sections from an exit's own to the last, number of outputs) -> exit
    "exits": Attentive,
    "exits-conv": Convolved,
    "exits-adapter": Adapter,
}


def exit_kind(features: Sequence[str]) -> str:
    """Return the kind of exits among features, or "". ValueError: more than one kind."""
    asked = [feature for feature in features if feature in EXITS]
    if len(asked) > 1:
        raise ValueError(f"features {' and '.join(asked)}: expected one kind of exits")
    return asked[0] if asked else ""


def list_places(name: str, depths: Sequence[int]) -> tuple[int, ...]:
    """Return, for each exit of a kind, the number of the largest network's blocks before it; the
    last exit, after all blocks, is the network's own head.
    """
    total = sum(depths)
    if name == "exits-conv":
        return (*sorted({round(share * total) for share in SHARES} - {0, total}), total)
    return tuple(accumulate(depths))


def exit_places(submodel: Submodel) -> tuple[int, ...]:
    """Return the places of a submodel's exits as numbers of the largest network's blocks before
    them; without exits, only the end.

    The submodel has the network's own head if the last place is the number of all blocks.

    ValueError: more than one kind of exits, or no block.
    """
    name, depths = exit_kind(submodel.features), tuple(map(len, submodel.mask))
    if not name:
        return (sum(depths),)
    kept = [number for number, keep in enumerate(chain(*submodel.mask), 1) if keep]
    if not kept:
        raise ValueError(
            f"submodel {submodel.name} keeps no block; a network with exits requires at least one"
        )
    found = list_places(name, depths)
    return found[: bisect_left(found, kept[-1]) + 1]


def levels(whole: Submodel) -> tuple[Submodel, ...]:
    """Return one submodel for each exit of a whole network, shallowest first, with every block up
    to that exit.
    """
    depths = tuple(map(len, whole.mask))
    starts = tuple(accumulate(depths, initial=0))[:-1]
    return tuple(
        replace(
            whole,
            mask=tuple(
                tuple(int(start + block < place) for block in range(depth))
                for start, depth in zip(starts, depths, strict=True)
            ),
        )
        for place in exit_places(whole)
    )


def early_exits(
    submodel: Submodel, widths: Sequence[int], answers: Callable[[Tensor], list[Tensor]]
) -> Exits:
    """Return the exits that a submodel owns before the network's own head.

    widths: kept channels of each section
    answers: see `Exits`
    """
    ends, heads = tuple(accumulate(map(len, submodel.mask))), dict[str, nn.Module]()
    for index, place in enumerate(exit_places(submodel)):
        if place < ends[-1]:
            # channels from the section of the block before the exit to the last
            left = widths[bisect_left(ends, place) :]
            heads[str(index)] = EXITS[exit_kind(submodel.features)](left, submodel.network.outputs)
    return Exits(heads, answers)


def run_exits(net: nn.Module, submodel: Submodel, x: Tensor) -> list[Tensor]:
    """Return the output of each exit, the shallowest first, or the one output of a network without
    exits.
    """
    exits = any(name.startswith("exits") for name in submodel.features)
    # `exits` is a module, unknown to Module's type
    return net.exits(x) if exits else [net(x)]  # type: ignore[operator]


def labelled_tensors(submodel: Submodel) -> frozenset[str]:
    """Return the labelled tensors of a network whose heads are its exits and its `linear`."""
    blocks = sum(map(len, submodel.mask))
    heads = [
        "linear" if place == blocks else f"exits.{index}.linear"
        for index, place in enumerate(exit_places(submodel))
    ]
    return frozenset(f"{name}.{part}" for name in heads for part in ("weight", "bias"))


def features_at(
    x: Tensor, sections: Iterable[nn.Module], depths: Sequence[int], places: Sequence[int]
) -> list[Tensor]:
    """Return the feature before each exit.

    x: [N, w0, H, W]
    sections: blocks of each section, named by their indices in the largest network
    """
    features, numbers = [], count(1)
    for blocks, depth in zip(sections, depths, strict=True):
        for index in map(str, range(depth)):
            # a ModuleDict, unknown to ModuleList's type
            x = blocks[index](x) if index in blocks else x  # type: ignore[index, operator]
            if next(numbers) in places:
                features.append(x)  # [N, ws, H/2^s, W/2^s]
    return features
