"""Find which axes of a network's tensors are the same channels: groups of axes that scale together,
and their size at a width.

A label says that an axis is channel-major: `channels` of its group, each with `positions` adjacent
entries (of a flattened image, for example). The leading k channels are then the leading k *
positions entries, so every narrow tensor is a leading corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from models.submodel import scale_count

__all__ = ["Axis", "Groups", "Label", "Labels", "length"]

Label = tuple[int, int]
"""Number of a group, and positions per channel."""

Labels = tuple[Label | None, ...]
"""One label per axis of a tensor; None for an axis that never scales."""


@dataclass(frozen=True)
class Axis:
    """An axis that scales.

    channels: channels at width 1
    positions: entries per channel
    multiple: divisor of every kept number of channels
    """

    channels: int
    positions: int
    multiple: int


def length(axis: Axis | int, width: float) -> int:
    """Return the kept length of an axis; the full length if the kept channels do not divide as a
    group norm needs.
    """
    if isinstance(axis, int):
        return axis
    channels = scale_count(width, axis.channels)
    return (axis.channels if channels % axis.multiple else channels) * axis.positions


@dataclass
class Groups:
    """Groups of channels that must scale together: a union-find with attributes of each root.

    parents: parent of each group
    channels: channels of each group
    multiples: divisor of the kept channels of each root
    whole: groups that cannot scale
    obstacles: operations that prevent scaling, in order
    place: the operation being read
    tensors: labels of the network's tensors by identity, each with its tensor so that the identity
        is not reused
    fields: sizes that a layer keeps of its own channels, by layer and attribute
    """

    parents: list[int] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)
    multiples: list[int] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    obstacles: list[str] = field(default_factory=list)
    place: str = ""
    tensors: dict[int, tuple[Tensor, Labels]] = field(default_factory=dict)
    fields: dict[tuple[nn.Module, str], Label | Labels | None] = field(default_factory=dict)

    def new(self, channels: int) -> Label | None:
        """Add a group; None for a single channel, which every width keeps."""
        if channels == 1:
            return None
        self.parents.append(len(self.parents))
        self.channels.append(channels)
        self.multiples.append(1)
        return len(self.parents) - 1, 1

    def root(self, group: int) -> int:
        while self.parents[group] != group:
            group = self.parents[group]
        return group

    def freeze(self, labels: Iterable[Label | None], *, blame: bool = True) -> None:
        """Keep these axes whole.

        blame: record the operation being read as an obstacle
        """
        for root in {self.root(label[0]) for label in labels if label is not None} - self.whole:
            self.whole.add(root)
            if blame:
                self.obstacles.append(self.place)

    def join(self, one: Label | None, other: Label | None) -> Label | None:
        """Return the label of an axis that belongs to both groups; if the two differ in layout,
        both stay whole.
        """
        if (
            one is None
            or other is None
            or one[1] != other[1]
            or self.channels[one[0]] != self.channels[other[0]]
        ):
            self.freeze((one, other))
            return None
        first, second = self.root(one[0]), self.root(other[0])
        self.parents[second] = first
        self.multiples[first] = math.lcm(self.multiples[first], self.multiples[second])
        if self.whole & {first, second}:
            self.whole.add(first)
        return one

    def divide(self, label: Label | None, parts: int) -> None:
        """Require that the kept entries of an axis divide into `parts`."""
        if label is not None:
            root = self.root(label[0])
            self.multiples[root] = math.lcm(
                self.multiples[root], parts // math.gcd(parts, label[1])
            )

    def claim(self, tensor: Tensor | None, labels: Labels) -> Labels:
        """Return the labels of one of the network's tensors, joined with those of earlier uses;
        missing axes never scale.
        """
        if tensor is None:
            return labels
        labels += (None,) * (tensor.ndim - len(labels))
        if id(tensor) in self.tensors:
            labels = tuple(
                self.join(*pair) for pair in zip(self.tensors[id(tensor)][1], labels, strict=True)
            )
        self.tensors[id(tensor)] = tensor, labels
        return labels

    def own(self, tensor: Tensor) -> Labels:
        """Return the labels of a tensor used outside any layer; each axis starts as a new group."""
        if id(tensor) not in self.tensors:
            self.claim(tensor, tuple(map(self.new, tensor.shape)))
        return self.tensors[id(tensor)][1]

    def note(self, layer: nn.Module, **fields: Label | Labels | None) -> None:
        """Record attributes of a layer that hold sizes of its axes."""
        self.fields.update({(layer, name): label for name, label in fields.items()})

    def axis(self, label: Label | None) -> Axis | None:
        """Return the axis of a label, or None if it stays whole."""
        if label is None or (root := self.root(label[0])) in self.whole:
            return None
        return Axis(self.channels[root], label[1], self.multiples[root])

    def axes(self, labels: Labels, whole: Iterable[Any]) -> tuple[Axis | int, ...]:
        """Return the axes of a tensor or field of these lengths at width 1."""
        return tuple(self.axis(label) or int(n) for label, n in zip(labels, whole, strict=True))
