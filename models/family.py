"""What a family of networks declares: two records, filled in by each family's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from models.submodel import Submodel

__all__ = ["Address", "Family", "Preset"]

Address = tuple[int, int, str]
"""Where a tensor sits: its section, its block's index in the largest network, and its name within the block."""


@dataclass(frozen=True)
class Preset:
    """One size of a family.

    widths: channels per section at width 1. depths: blocks per section of the largest network.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """A kind of network that scales.

    build: makes the module of a submodel, initialised from torch's current random state; every tensor of it must be
        the leading corner of the largest network's tensor of the same name.
    presets: the sizes by name; default: the one meant when none is named.
    inputs: number of axes of one example (3: channels, height, width); 0 takes any.
    labelled: names of the tensors whose axis 0 is the classes.
    address: section, block and rest of a tensor's name; None for what lies outside the sections. Grafting needs it.
    """

    build: Callable[[Submodel], nn.Module]
    presets: Mapping[str, Preset]
    default: str
    inputs: int
    labelled: Callable[[Submodel], frozenset[str]]
    address: Callable[[str], Address | None]
