"""Define `Family`, the record with which each file in `models/families` declares its networks: how
to build them, their presets, and how they scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from torch import Tensor, nn

from models.submodel import Objective, Submodel, Target

__all__ = [
    "Address",
    "Family",
    "Pieces",
    "Tensors",
    "Torchvision",
    "TypicalData",
    "check_mask",
    "last_linear",
    "list_spellings",
    "parse_address",
]

Address = tuple[int, int, str]
"""Position of a tensor: its section, its block's index in the largest network, and its name within
the block.
"""

Tensors = Mapping[str, Tensor]

Pieces = Mapping[str, tuple[tuple[tuple[int, int], ...], ...]]
"""Tensor -> per axis, (start, stop) of each run of entries of the largest network that a submodel
keeps, in order.
"""


class Preset(Protocol):
    """One size of a family: the fields that the family's file needs, and the number of blocks per
    section of the largest network.
    """

    @property
    def depths(self) -> tuple[int, ...]: ...


def parse_address(name: str) -> Address | None:
    """Parse the name of a tensor in a block: sections.1.3.conv2.weight -> (1, 3, "conv2.weight").

    Every family of the project names its blocks this way. Returns None for names outside the
    sections.
    """
    if not name.startswith("sections."):
        return None
    _, section, block, rest = name.split(".", 3)
    return (int(section), int(block), rest) if block.isdecimal() else None


def plain_objective(preset: str, target: Target) -> Objective:
    """Return the objective of a network for images or features: classes or values.

    ValueError: the data are tokens.
    """
    if target == "token":
        raise ValueError(
            "it learns classes or values, but the data are tokens; use a model for tokens, "
            "such as 'transformer'"
        )
    return target


def last_linear(submodel: Submodel) -> frozenset[str]:
    """Return the labelled tensors of a network whose only head is its `linear`."""
    return frozenset({"linear.weight", "linear.bias"})


def no_pieces(submodel: Submodel) -> Pieces:
    """Return the pieces of a family whose tensors are leading corners."""
    return {}


@dataclass(frozen=True)
class Family:
    """A kind of network that scales in width and depth.

    build: make the module of a submodel, initialised from torch's current random state. Each of its
        tensors must be the leading corner of the largest network's tensor of the same name, or
        consist of the `pieces`; blocks are named `sections.SECTION.BLOCK`.
    presets: the sizes by name
    default: the preset used when none is named
    inputs: number of axes of one example (3: channels, height, width); 0 accepts any
    typical: data that every preset can learn, of which random examples are drawn to time submodels
    labelled: names of the tensors whose axis 0 is the classes or the values
    features: extensions that a method may request. "steps" (NeFL) and "exits" (DepthFL) are up to
        `build`. The project adds "scaler" (HeteroFL) to modules with a `scaler`, such as
        `layers.basic.Linear`, and "projection" (MOON) to a head named `linear` that is one
        `nn.Linear`.
    help: its data and its presets, one line for the table in docs/networks.md
    draws: True if training may draw from PyTorch's global generator, as dropout does
    objective: objective of a preset for data of a target; ValueError if it cannot learn them
    texts: whether it may read texts with a class or with values
    pieces: kept entries of the tensors of a submodel that are not leading corners, per axis
    address: section, block and rest of a tensor's name, None outside the sections; used for
        grafting
    torchvision: names and conversion of torchvision's weights, or None
    """

    build: Callable[[Submodel], nn.Module]
    presets: Mapping[str, Preset]
    default: str
    inputs: int
    typical: TypicalData
    labelled: Callable[[Submodel], frozenset[str]]
    features: frozenset[str]
    help: str
    draws: bool
    objective: Callable[[str, Target], Objective] = plain_objective
    texts: bool = False
    pieces: Callable[[Submodel], Pieces] = no_pieces
    address: Callable[[str], Address | None] = parse_address
    torchvision: Torchvision | None = None


def list_spellings(name: str, known: Family) -> tuple[str, ...]:
    """Return the names that select a family: its own, alone and with each of its presets."""
    return (name, *(f"{name}-{preset}" for preset in known.presets))


@dataclass(frozen=True)
class TypicalData:
    """The form of data that a family usually learns.

    inputs: shape of one example
    outputs: number of classes or of values, or the size of the vocabulary
    target: kind of label
    """

    inputs: tuple[int, ...]
    outputs: int
    target: Target


@dataclass(frozen=True)
class Torchvision:
    """Conversion of torchvision's networks to this family.

    names: preset -> name of the function in `torchvision.models`
    convert: (preset, its state dict) -> tensors of the project's largest network by name; raises
        KeyError if one is missing
    timm: preset -> name of timm's network with the same layers, which `convert` reads too
    """

    names: Mapping[str, str]
    convert: Callable[[str, Tensors], dict[str, Tensor]]
    timm: Mapping[str, str] = field(default_factory=dict)


def check_mask(
    submodel: Submodel, depths: tuple[int, ...], *, first: bool = True, end: int | None = None
) -> None:
    """Check that the mask fits the depths and, if `first`, keeps the first block of each section,
    which changes the channels.

    end: number of blocks of the largest network before the last exit; later sections are not
        checked
    ValueError: the mask does not fit.
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
            f"submodel {submodel.name} drops the first block of a section; that block "
            "changes the channels and must stay"
        )
