"""Early exits of networks for images: what turns the features after some block into logits, so that
a submodel may end there.

"exits": DepthFL (Kim et al., ICLR 2023): attention on the feature, separable convolutions down to
the last section's channels, linear. "exits-conv": ScaleFL (Ilhan et al., CVPR 2023): three 3x3
convolutions at the block's own channels, linear; not after sections but at 30, 38
    and 46 54ths of all blocks.
"exits-adapter": RecipFL's network of one section (3x3 convolution, as many strides as sections are
left, linear), and NeFL's DepthFL baseline
    (arXiv 2308.07761, section V-A2): a downsampling layer and a linear of its own for each depth.

Each ends in global average pooling. An exit stands for a range of blocks, those after the exit
before it up to its own place; a submodel ends at the exit whose range holds its deepest kept block,
and owns that one and all before it. After all blocks sits the network's own head. The families that
have exits differ in what happens to a feature before an exit reads it, and share all else here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, count, pairwise
from types import MappingProxyType

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Norm
from models.submodel import Submodel

__all__ = ["EXITS", "Exits", "early", "kind", "labelled", "levels", "passed", "reached"]

SHARES = (30 / 54, 38 / 54, 46 / 54)  # of the blocks of ScaleFL's ResNet110


class Exits(nn.ModuleDict):
    """`net.exits(x)`: logits of every exit that a network has, shallow first, from its raw input;
    the tensors are `exits.INDEX...`.
    """

    def __init__(
        self, heads: Mapping[str, nn.Module], answers: Callable[[Tensor], list[Tensor]]
    ) -> None:
        """answers: the network's own method that gives all logits; it is called, and no part of the
        state.
        """
        super().__init__(heads)
        self.answers = answers

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.answers(x)


class Separable(nn.Sequential):
    """Two depthwise separable 3x3 convolutions, the first with a stride of 2; [N, I, H, W] -> [N,
    O, H/2, W/2].
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
    """DepthFL's exit: the feature times a map of attention, then one Separable for each section
    that is left; [N, widths[0], H, W] -> logits.
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


EXITS: MappingProxyType[str, Callable[[Sequence[int], int], nn.Module]] = MappingProxyType(
    # From the kept channels of the sections from an exit's own to the last, and the number of
    # outputs.
    {"exits": Attentive, "exits-conv": Convolved, "exits-adapter": Adapter}
)


def kind(features: Sequence[str]) -> str:
    """The exits that features ask for; "" for none. ValueError: more than one kind."""
    asked = [feature for feature in features if feature in EXITS]
    if len(asked) > 1:
        raise ValueError(f"a network with {' and '.join(asked)}; expected one kind of exits")
    return asked[0] if asked else ""


def places(name: str, depths: Sequence[int]) -> tuple[int, ...]:
    """After how many blocks of the largest network each exit of a kind sits; the last one, after
    all of them, is the network's own head.
    """
    total = sum(depths)
    if name == "exits-conv":
        return (*sorted({round(share * total) for share in SHARES} - {0, total}), total)
    return tuple(accumulate(depths))


def reached(submodel: Submodel) -> tuple[int, ...]:
    """The places of a submodel's exits, as numbers of the largest network's blocks before them;
    without exits, the end alone.

    The own head is among them if the last place is the number of all blocks. ValueError: more than
    one kind of exits, or no block.
    """
    name, depths = kind(submodel.features), tuple(map(len, submodel.mask))
    if not name:
        return (sum(depths),)
    kept = [number for number, keep in enumerate(chain(*submodel.mask), 1) if keep]
    if not kept:
        raise ValueError(
            f"submodel {submodel.name} keeps no block; a network with exits ends at its deepest one"
        )
    found = places(name, depths)
    return found[: bisect_left(found, kept[-1]) + 1]


def levels(whole: Submodel) -> tuple[Submodel, ...]:
    """One submodel for each exit of a whole network, the shallowest first: every block up to the
    exit's place.
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
        for place in reached(whole)
    )


def early(
    submodel: Submodel, widths: Sequence[int], answers: Callable[[Tensor], list[Tensor]]
) -> Exits:
    """The exits that a submodel owns before the network's own head. widths: kept channels of each
    section; answers: see `Exits`.
    """
    ends, heads = tuple(accumulate(map(len, submodel.mask))), dict[str, nn.Module]()
    for index, place in enumerate(reached(submodel)):
        if place < ends[-1]:
            # channels from the section of the block before the exit to the last
            left = widths[bisect_left(ends, place) :]
            heads[str(index)] = EXITS[kind(submodel.features)](left, submodel.network.outputs)
    return Exits(heads, answers)


def labelled(submodel: Submodel) -> frozenset[str]:
    """The labelled tensors of a network whose heads are its exits and its `linear`."""
    blocks = sum(map(len, submodel.mask))
    heads = [
        "linear" if place == blocks else f"exits.{index}.linear"
        for index, place in enumerate(reached(submodel))
    ]
    return frozenset(f"{name}.{part}" for name in heads for part in ("weight", "bias"))


def passed(
    x: Tensor, sections: Iterable[nn.Module], depths: Sequence[int], places: Sequence[int]
) -> list[Tensor]:
    """The feature before each exit, of x [N, w0, H, W] that goes through the blocks, which are
    named by their indices in the largest network.
    """
    features, numbers = [], count(1)
    for blocks, depth in zip(sections, depths, strict=True):
        for index in map(str, range(depth)):
            # a ModuleDict, which ModuleList's type forgets
            x = blocks[index](x) if index in blocks else x  # type: ignore[index, operator]
            if next(numbers) in places:
                features.append(x)  # [N, ws, H/2^s, W/2^s]
    return features
