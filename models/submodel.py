"""Which network, and which part of it: two torch-free records that travel in every task.

A `Network` names the largest network of a run; a `Submodel` names one part of it by a kept width
and a mask of blocks. Every tensor of a submodel is the leading corner of the network's tensor with
the same name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

__all__ = ["DataMoments", "Moments", "Network", "Objective", "Submodel", "Target", "kept"]

Target = Literal["class", "value", "token"]
"""What data give to learn: one class per example, values (regression), or a token after each token
of a text.
"""

Objective = Literal["class", "value", "next", "masked"]
"""What a network learns: a class, values, at each position the next token (causal), or the tokens
that were hidden (masked).
"""


class DataMoments(Protocol):
    """Means and spreads of data, in raw units; a `federated.task.Card` and a `Network` have them.

    mean, std: of the examples, one value or one per channel.
    shift, scale: mean and spread of each value to learn; empty if the target is not values.
    """

    @property
    def mean(self) -> Sequence[float]: ...
    @property
    def std(self) -> Sequence[float]: ...
    @property
    def shift(self) -> Sequence[float]: ...
    @property
    def scale(self) -> Sequence[float]: ...


@dataclass(frozen=True)
class Moments:
    """`DataMoments` made of numbers."""

    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    shift: Sequence[float] = ()
    scale: Sequence[float] = ()


@dataclass(frozen=True)
class Network:
    """The largest network of a run.

    family: a key of `models.families.catalogue.FAMILIES`, or `module:function`.
    preset: the name of a size within the family.
    inputs: shape of one raw example, (channels, height, width) for images.
    outputs: number of classes or of values; size of the vocabulary.
    mean, std: per channel, in the units of the raw data; the network itself computes (x - mean) /
    std,
        so that devices and exported graphs take raw data.
    objective: what is learned. A "class" network gives logits [N, outputs], a "value" network
    standardised values [N, outputs],
        a network of tokens logits [N, outputs, T].
    shift, scale: per value, in raw units, of a "value" network: raw = value * scale + shift; empty
    where values are raw as they are. label: begins the names of its submodels, where a run has
    several networks.
    """

    family: str
    preset: str
    inputs: tuple[int, ...]
    outputs: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    objective: Objective = "class"
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Submodel:
    """One part of a network; hashable, so that caches key on it.

    width: kept share of every scalable channel group, in (0, 1].
    mask: per section, one 0 or 1 per block of the largest network (1: the block is kept).
    features: what a method asks of the network beyond its plain form ("scaler", "exits", ...),
    sorted.
    branches: parallel branches per layer (DynamicFL).
    owner: the agent that it was made for, where submodels are made per agent.
    """

    network: Network
    width: float
    mask: tuple[tuple[int, ...], ...]
    features: tuple[str, ...] = ()
    branches: int = 1
    owner: str = ""

    @property
    def name(self) -> str:
        """Short, unique within a run, and safe in a topic and a file name: `w0.5-d2.2.3`, or
        `w1-b1011.11` where blocks are skipped.
        """
        if all(tuple(sorted(m, reverse=True)) == m for m in self.mask):
            depth = "d" + ".".join(str(sum(m)) for m in self.mask) if self.mask else ""
        else:
            depth = "b" + ".".join("".join(map(str, m)) for m in self.mask)
        parts = [
            *([self.network.label] if self.network.label else []),
            f"w{self.width:g}",
            *([depth] if depth else []),
            *self.features,
        ]
        if self.branches > 1:
            parts.append(f"x{self.branches}")
        return "-".join(parts) + (f"@{self.owner}" if self.owner else "")

    @property
    def unowned(self) -> Submodel:
        """The same for whoever: as a menu lists it."""
        return replace(self, owner="") if self.owner else self

    @property
    def plain(self) -> Submodel:
        """The same part of the network without what concerns one device alone: its owner, and its
        branches, which are merged away.
        """
        return replace(self, branches=1, owner="") if self.owner or self.branches != 1 else self


def kept(ratio: float, channels: int) -> int:
    """Channels kept of a group: ceil(ratio x channels), as HeteroFL, FjORD and NeFL do.

    The product is first rounded to 9 decimals, so that 0.07 of 100 is 7.
    """
    return math.ceil(round(ratio * channels, 9))
