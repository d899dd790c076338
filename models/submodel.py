"""Torch-free records that name a network and a part of it; every task contains both.

A `Network` names the largest network of a run. A `Submodel` names one part of it by a kept width
and a mask of blocks. Every tensor of a submodel is the leading corner of the network's tensor with
the same name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from models.given_objects import describe_name

__all__ = [
    "MAX_AXES",
    "MAX_OUTPUTS",
    "DataMoments",
    "Moments",
    "Network",
    "Objective",
    "Submodel",
    "Target",
    "scale_count",
]

MAX_AXES = 8  # of one raw example
MAX_OUTPUTS = 2**20  # classes, values or tokens

Target = Literal["class", "value", "token"]
"""Kind of label in the data: one class per example, values (regression), or the next token at each
position of a text.
"""

Objective = Literal["class", "value", "next", "masked"]
"""Kind of output that a network learns: a class, values, the next token at each position (causal),
or hidden tokens (masked).
"""


class DataMoments(Protocol):
    """Means and standard deviations of data, in raw units; `federated.task.Card` and `Network`
    provide them.

    mean, std: of the examples, one value or one per channel
    shift, scale: mean and standard deviation of each target value; empty if the target is not
        values
    vocabulary, tokenizer: see `Network`
    """

    @property
    def mean(self) -> Sequence[float]: ...
    @property
    def std(self) -> Sequence[float]: ...
    @property
    def shift(self) -> Sequence[float]: ...
    @property
    def scale(self) -> Sequence[float]: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def tokenizer(self) -> str: ...


@dataclass(frozen=True)
class Moments:
    """Plain record of `DataMoments`."""

    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    shift: Sequence[float] = ()
    scale: Sequence[float] = ()
    vocabulary: int = 0
    tokenizer: str = ""


@dataclass(frozen=True)
class Network:
    """The largest network of a run.

    family: name of a model family, or `module:function`
    preset: name of a size within the family
    inputs: shape of one raw example; (channels, height, width) for images
    outputs: number of classes or of values, or the size of the vocabulary
    mean, std: per channel, in raw units. The network itself computes (x - mean) / std, so that
        devices and exported graphs take raw data.
    objective: what the network learns. A "class" network returns logits [N, outputs], a "value"
        network standardised values [N, outputs], a network of tokens logits [N, outputs, T].
    shift, scale: per value of a "value" network, in raw units: raw = value * scale + shift; empty
        if values are not standardised
    label: prefix of the names of its submodels, for runs with several networks
    vocabulary: number of tokens that an example may contain, if it is a text with a class or with
        values; 0 for other examples
    tokenizer: name or digest of the tokenizer that made these tokens; empty: unknown
    frozen: sha256 of the trained weights that each device loads itself and no device trains,
        hexadecimal; empty: it has none
    """

    family: str
    preset: str
    inputs: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=MAX_AXES)]
    outputs: Annotated[int, Meta(ge=1, le=MAX_OUTPUTS)]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    objective: Objective = "class"
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    label: str = ""
    vocabulary: Annotated[int, Meta(ge=0, le=MAX_OUTPUTS)] = 0
    tokenizer: Annotated[str, Meta(max_length=128)] = ""
    frozen: Annotated[str, Meta(pattern=r"^\Z|^[0-9a-f]{64}\Z")] = ""

    @property
    def target(self) -> Target:
        """Kind of label in the data from which it learns."""
        if self.objective == "next" or self.objective == "masked":
            return "token"
        return self.objective

    @property
    def tokens(self) -> int:
        """Number of tokens that an example may contain; 0 if it holds numbers."""
        return self.outputs if self.target == "token" else self.vocabulary

    @property
    def title(self) -> str:
        """The name of the family, as messages show it."""
        return describe_name(self.family)

    @property
    def reads_images(self) -> bool:
        """Whether an example is an image: channels, height and width."""
        return len(self.inputs) == 3


@dataclass(frozen=True)
class Submodel:
    """One part of a network.

    network: the largest network
    width: kept fraction of every scalable channel group, in (0, 1]
    mask: per section, one 0 or 1 per block of the largest network (1: kept)
    features: extensions of the plain network that a method requests ("scaler", "exits", ...),
        sorted
    branches: parallel branches per layer (DynamicFL)
    owner: agent that the submodel was made for, where submodels are made per agent
    """

    network: Network
    width: Annotated[float, Meta(gt=0, le=1)]
    mask: tuple[tuple[int, ...], ...]
    features: tuple[str, ...] = ()
    branches: Annotated[int, Meta(ge=1)] = 1
    owner: str = ""

    @cached_property  # every key of a task contains it
    def name(self) -> str:
        """Short name, unique within a run and safe in topics and file names: `w0.5-d2.2.3`, or
        `w1-b1011.11` if blocks are skipped.
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

    def __repr__(self) -> str:
        return f"<Submodel {self.name} of {self.network.title}>"

    def __hash__(self) -> int:  # many caches have it in their keys
        return hash((self.network.family, self.network.preset, self.name))

    @property
    def unowned(self) -> Submodel:
        """The same submodel without an owner, as a menu lists it."""
        return replace(self, owner="") if self.owner else self

    @property
    def plain(self) -> Submodel:
        """The same part of the network without per-device attributes: without an owner, and with
        branches merged.
        """
        return replace(self, branches=1, owner="") if self.owner or self.branches != 1 else self


def scale_count(ratio: float, channels: int) -> int:
    """Return how many of a number of channels (or blocks) a submodel keeps: ceil(ratio x channels),
    as in HeteroFL, FjORD and NeFL.

    The product is first rounded to 9 decimals, so that 0.07 of 100 is 7.
    """
    return math.ceil(round(ratio * channels, 9))
