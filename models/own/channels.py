"""Which axes of a network's tensors are the same channels: groups, found by following an example
through it, and their size at a width.

A label says that an axis is channel-major: `channels` of its group, each with `positions` entries
side by side (those of a flattened picture, say), so that the leading k channels are the leading k *
positions entries, and every narrow tensor is a leading corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from models.submodel import kept

__all__ = ["Axis", "Groups", "Label", "Labels", "length"]

Label = tuple[int, int]
"""A group's number, and positions per channel."""

Labels = tuple[Label | None, ...]
"""One per axis of a tensor; None where an axis never scales."""


@dataclass(frozen=True)
class Axis:
    """An axis that scales: `channels` times `positions` long at width 1. multiple: what every kept
    number of channels is a multiple of.
    """

    channels: int
    positions: int
    multiple: int


def length(axis: Axis | int, width: float) -> int:
    """Entries kept of an axis; all, where the kept channels would not divide as a group norm needs
    them to.
    """
    if isinstance(axis, int):
        return axis
    channels = kept(width, axis.channels)
    return (axis.channels if channels % axis.multiple else channels) * axis.positions


@dataclass
class Groups:
    """Groups of channels that must scale together, under construction: a union-find with what is
    known of each root.

    whole: the groups that cannot scale. obstacles: the operations that made them so, in order.
    place: the operation being read. tensors: labels of the network's tensors by identity (each
    beside its tensor, which keeps the identity taken).
    fields: numbers that a layer keeps of its own channels, by the layer and the attribute.
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
        """A group of its own; None for a single channel, which every width keeps."""
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
        """These axes stay whole, because of the operation being read; without blame, because
        nothing else was ever meant.
        """
        for root in {self.root(label[0]) for label in labels if label is not None} - self.whole:
            self.whole.add(root)
            if blame:
                self.obstacles.append(self.place)

    def join(self, one: Label | None, other: Label | None) -> Label | None:
        """The label of an axis that is both; where they differ in kind, both stay whole."""
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
        """The kept entries of an axis must divide into so many parts."""
        if label is not None:
            root = self.root(label[0])
            self.multiples[root] = math.lcm(
                self.multiples[root], parts // math.gcd(parts, label[1])
            )

    def claim(self, tensor: Tensor | None, labels: Labels) -> Labels:
        """The labels of one of the network's tensors, joined with what earlier uses of it said;
        axes left out never scale.
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
        """The labels of a tensor that the network uses outside of any layer: at first each axis is
        a group of its own.
        """
        if id(tensor) not in self.tensors:
            self.claim(tensor, tuple(map(self.new, tensor.shape)))
        return self.tensors[id(tensor)][1]

    def note(self, layer: nn.Module, **fields: Label | Labels | None) -> None:
        """Numbers that a layer keeps of its axes."""
        self.fields.update({(layer, name): label for name, label in fields.items()})

    def axis(self, label: Label | None) -> Axis | None:
        """What is known of a label in the end; None where it stays whole."""
        if label is None or (root := self.root(label[0])) in self.whole:
            return None
        return Axis(self.channels[root], label[1], self.multiples[root])

    def axes(self, labels: Labels, whole: Iterable[Any]) -> tuple[Axis | int, ...]:
        """The axes of a tensor or field, `whole` long at width 1."""
        return tuple(self.axis(label) or int(n) for label, n in zip(labels, whole, strict=True))
