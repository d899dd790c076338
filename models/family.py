"""What a family of networks declares: one record, filled in by each family's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from torch import Tensor, nn

from models.submodel import Objective, Submodel, Target

__all__ = ["Address", "Family", "Tensors", "Torchvision", "check_mask", "sectioned"]

Address = tuple[int, int, str]
"""Where a tensor sits: its section, its block's index in the largest network, and its name within
the block.
"""

Tensors = Mapping[str, Tensor]


class Preset(Protocol):
    """One size of a family: whatever the family's file needs, and the blocks per section of the
    largest network.
    """

    @property
    def depths(self) -> tuple[int, ...]: ...


def sectioned(name: str) -> Address | None:
    """sections.1.3.conv2.weight -> (1, 3, "conv2.weight"): how every family of the project names
    its blocks; None outside of them.
    """
    if not name.startswith("sections."):
        return None
    _, section, block, rest = name.split(".", 3)
    return (int(section), int(block), rest) if block.isdecimal() else None


def plain(preset: str, target: Target) -> Objective:
    """What a network for images or features learns: classes or values. ValueError for tokens."""
    if target == "token":
        raise ValueError(
            "it learns classes or values, and the data are tokens; a model for tokens "
            "is 'transformer'"
        )
    return target


def last_linear(submodel: Submodel) -> frozenset[str]:
    """The labelled tensors of a network whose one head is its `linear`."""
    return frozenset({"linear.weight", "linear.bias"})


@dataclass(frozen=True)
class Family:
    """A kind of network that scales.

    build: makes the module of a submodel, initialised from torch's current random state; every
    tensor of it must be
        the leading corner of the largest network's tensor of the same name, and blocks are named
        `sections.SECTION.BLOCK`.
    presets: the sizes by name; default: the one meant when none is named.
    inputs: number of axes of one example (3: channels, height, width); 0 takes any.
    labelled: names of the tensors whose axis 0 is the classes, or the values.
    features: what a method may ask of it beyond its plain form: "scaler" (HeteroFL), "steps"
    (NeFL), "exits" (DepthFL), ... objective: what a preset learns from data of a target.
    ValueError: it cannot.
    address: section, block and rest of a tensor's name; None for what lies outside the sections.
    Grafting needs it.
    torchvision: torchvision's name of a preset's network, and its state dict as the largest
    network's tensors; None where it has none.
    """

    build: Callable[[Submodel], nn.Module]
    presets: Mapping[str, Preset]
    default: str
    inputs: int
    labelled: Callable[[Submodel], frozenset[str]] = last_linear
    features: frozenset[str] = frozenset({"scaler"})
    objective: Callable[[str, Target], Objective] = plain
    address: Callable[[str], Address | None] = sectioned
    torchvision: Torchvision | None = None


@dataclass(frozen=True)
class Torchvision:
    """How torchvision's networks become ours.

    names: preset -> the function's name in `torchvision.models`.
    convert: (preset, its state dict) -> the tensors of our largest network by name; raises KeyError
    where one is missing.
    """

    names: Mapping[str, str]
    convert: Callable[[str, Tensors], dict[str, Tensor]]


def check_mask(
    submodel: Submodel, depths: tuple[int, ...], *, first: bool = True, end: int | None = None
) -> None:
    """ValueError unless the mask fits the depths and, if `first`, keeps the first block of each
    section, where channels change.

    end: blocks of the largest network up to the last exit; the sections after it have nothing to
    keep.
    """
    if tuple(map(len, submodel.mask)) != depths:
        raise ValueError(
            f"mask {submodel.mask} of submodel {submodel.name}: expected blocks per "
            f"section {depths}"
        )
    begun = [
        section
        for start, section in zip(accumulate(depths, initial=0), submodel.mask, strict=False)
        if end is None or start < end
    ]
    if first and not all(section[0] for section in begun):
        raise ValueError(
            f"submodel {submodel.name} drops the first block of a section; the first "
            "one changes the channels and must stay"
        )
