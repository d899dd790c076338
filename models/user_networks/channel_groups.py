"""Find which axes of a network's tensors are the same channels: groups of axes that scale together,
and their size at a width.

A label says that an axis is channel-major: `channels` of its group, each with `positions` adjacent
entries (of a flattened image, for example). The leading k channels are then the leading k *
positions entries. Where channels of several groups are adjacent on one axis (concatenations, the
heads of attention, fused queries, keys and values), their group is a compound, and each of its
segments keeps its own leading part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from models.submodel import scale_count

__all__ = ["Axis", "Groups", "Label", "Labels", "length", "spans"]

Label = tuple[int, int]
"""Number of a group, and positions per channel."""

Labels = tuple[Label | None, ...]
"""One label per axis of a tensor; None for an axis that never scales."""


Segment = tuple[Label | None, int]
"""Part of a compound axis: its label, None if it never scales, and its entries at width 1."""

Span = tuple[int, int]
"""(start, stop) of kept entries on the whole axis."""


@dataclass(frozen=True)
class Axis:
    """An axis that scales.

    channels: channels at width 1
    positions: entries per channel
    multiple: divisor of every kept number of channels
    segments: of a compound axis, each an axis, or the entries of one that never scales
    """

    channels: int
    positions: int
    multiple: int
    segments: tuple[Axis | int, ...] = ()


def length(axis: Axis | int, width: float) -> int:
    """Return the kept length of an axis. It is the full length if a group norm on the axis cannot
    divide the kept channels into its groups.
    """
    if isinstance(axis, int):
        return axis
    if axis.segments:
        return sum(length(one, width) for one in axis.segments) * axis.positions
    channels = scale_count(width, axis.channels)
    return (axis.channels if channels % axis.multiple else channels) * axis.positions


def spans(axis: Axis | int, width: float) -> tuple[Span, ...]:
    """Return the kept entries of an axis: its leading ones, or those of each of its segments."""
    if isinstance(axis, int) or not axis.segments:
        return ((0, length(axis, width)),)
    found: list[Span] = []
    start = 0
    for one in axis.segments:
        for a, b in spans(one, width):
            a, b = ((start + n) * axis.positions for n in (a, b))
            if found and found[-1][1] == a:
                found[-1] = found[-1][0], b
            else:
                found.append((a, b))
        start += length(one, 1.0)
    return tuple(found)


@dataclass
class Groups:
    """Groups of channels that must scale together: a union-find with attributes of each root.

    parents: parent of each group
    channels: channels of each group
    multiples: divisor of the kept channels of each root
    segments: of each root that is a compound
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
    segments: dict[int, tuple[Segment, ...]] = field(default_factory=dict)
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
            self.freeze((one for one, _ in self.segments.get(root, ())), blame=False)

    def compose(self, segments: Sequence[Segment]) -> Label | None:
        """Return the label of an axis of adjacent segments."""
        if all(label is None for label, _ in segments):
            return None
        made = self.new(sum(entries for _, entries in segments))
        assert made is not None
        self.segments[made[0]] = tuple(segments)
        return made

    def divide_axis(self, label: Label | None, parts: int) -> Label | None:
        """Return the label of each of the equal parts of an axis; if the axis cannot be divided so,
        it stays whole.
        """
        if label is None:
            return None
        root, total = self.root(label[0]), self.channels[label[0]]
        known = self.segments.get(root)
        if label[1] != 1 or total % parts or root in self.whole:
            self.freeze((label,))
            return None
        if known is None:
            inner = self.new(total // parts)
            if inner is not None and self.multiples[root] == 1:
                self.segments[root] = ((inner, total // parts),) * parts
                return inner
        elif len(known) % parts == 0:
            step = len(known) // parts
            first, *others = [known[i : i + step] for i in range(0, len(known), step)]
            if all([n for _, n in run] == [n for _, n in first] for run in others):
                for run in others:
                    for (a, _), (b, _) in zip(first, run, strict=True):
                        self.join(a, b)
                return first[0][0] if step == 1 else self.compose(first)
        self.freeze((label,))
        return None

    def divide_heads(
        self, label: Label | None, heads: int
    ) -> tuple[Label | None, Label | None] | None:
        """Return the labels of the fused queries, keys and values, and of the joined heads, of an
        attention whose heads have as many channels together as its input; None if the input stays
        whole. Each head's part of the input keeps its own leading channels, too.
        """
        inner = self.divide_axis(label, heads)
        if label is None or inner is None:
            return None
        parts = [(inner, self.channels[label[0]] // heads)] * heads
        return self.compose(parts * 3), self.compose(parts)

    def split_axis(self, label: Label | None, sizes: Sequence[int]) -> list[Label | None]:
        """Return the labels of adjacent parts of these sizes; if the axis cannot be split so, it
        stays whole.
        """
        nothing: list[Label | None] = [None] * len(sizes)
        if label is None:
            return nothing
        root = self.root(label[0])
        known = self.segments.get(root)
        if label[1] == 1 and root not in self.whole and sum(sizes) == self.channels[root]:
            if known is None and self.multiples[root] == 1:
                parts = [self.new(n) for n in sizes]
                self.segments[root] = tuple(zip(parts, sizes, strict=True))
                return parts
            if known is not None and [n for _, n in known] == list(sizes):
                return [one for one, _ in known]
        self.freeze((label,))
        return nothing

    def join(self, one: Label | None, other: Label | None) -> Label | None:
        """Return the label of an axis that belongs to both groups; if the two differ in layout,
        both stay whole.
        """
        if one is not None and other is not None and one[1] != other[1]:
            aligned = self.align(one, other) or self.align(other, one)
            if aligned is not None:
                return aligned
        if (
            one is None
            or other is None
            or one[1] != other[1]
            or self.channels[one[0]] != self.channels[other[0]]
        ):
            self.freeze((one, other))
            return None
        first, second = self.root(one[0]), self.root(other[0])
        if first == second:
            return one
        if second in self.segments and first not in self.segments:
            first, second = second, first
        if first in self.segments and not self.join_compound(first, second):
            self.freeze((one, other))
            return None
        self.parents[second] = first
        self.multiples[first] = math.lcm(self.multiples[first], self.multiples[second])
        if self.whole & {first, second}:
            self.whole.discard(first)
            self.freeze((one,), blame=False)  # also the segments
        return one

    def align(self, one: Label, other: Label) -> Label | None:
        """Let a group that is still free follow an axis with several positions per channel; return
        None if it cannot.
        """
        root, target = self.root(one[0]), self.root(other[0])
        entries = self.channels[root]
        known = self.segments.get(root, ())
        if len(known) == 1 and known[0] == (other, entries):
            return one
        if len(known) == 1 and known[0][0] is not None and known[0][0][1] == other[1] != one[1]:
            return one if self.join(known[0][0], other) is not None else None
        free = root not in self.segments and root not in self.whole and self.multiples[root] == 1
        if (
            not free
            or one[1] != 1
            or entries != self.channels[target] * other[1]
            or root in self.inside(target) | {target}
        ):
            return None
        self.segments[root] = ((other, entries),)
        return one

    def join_compound(self, first: int, second: int) -> bool:
        """Join a compound with another group: segment by segment, if that is a compound, too.
        Return False if they cannot be joined.
        """
        if second in self.inside(first) or first in self.inside(second):
            return False
        if second not in self.segments:
            return self.multiples[second] == 1
        pairs = list(zip(self.segments[first], self.segments[second], strict=False))
        if [n for _, n in self.segments[first]] != [n for _, n in self.segments[second]]:
            return False
        for (one, _), (other, _) in pairs:
            self.join(one, other)
        return True

    def inside(self, root: int) -> set[int]:
        """Return the roots of all segments of a group, at any depth."""
        found, left = set[int](), [root]
        while left:
            parts = self.segments.get(left.pop(), ())
            new = {self.root(one[0]) for one, _ in parts if one is not None} - found
            found |= new
            left += new
        return found

    def divide(self, label: Label | None, parts: int) -> None:
        """Require that the kept entries of an axis divide into `parts`."""
        if label is not None:
            root = self.root(label[0])
            if known := self.segments.get(root):
                if len({*known}) > 1 or len(known) % parts:
                    self.freeze((label,))
                return
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

    def follow_field(self, size: Any, label: Label | None) -> Label | None:
        """Record that an attribute of a layer, or a number of a tuple there, is the size of an
        axis; return the label of its earlier use.
        """
        place = size.layer, size.name
        if size.index is None:
            known = self.fields.get(place)
            self.fields[place] = label
            return known  # type: ignore[return-value]
        labels: Any = self.fields.get(place, (None,) * len(getattr(*place)))
        self.fields[place] = (*labels[: size.index], label, *labels[size.index + 1 :])
        return labels[size.index]  # type: ignore[no-any-return]

    def have_same_length(self, one: Label | None, other: Label | None) -> bool:
        """Return True if two axes have equally many entries at every width."""
        return None not in {one, other} and self.count(one, 1) == self.count(other, 1)

    def count(self, label: Label | None, entries: int) -> Counter[int | None]:
        """Return how many entries of an axis each group has per channel of its own; None: entries
        that never scale.
        """
        if label is None or (root := self.root(label[0])) in self.whole:
            return Counter({None: entries})
        found = Counter[int | None]()
        for one, n in self.segments.get(root, ()):
            found.update(self.count(one, n))
        return Counter({key: n * label[1] for key, n in (found or Counter({root: 1})).items()})

    def axis(self, label: Label | None) -> Axis | None:
        """Return the axis of a label, or None if it stays whole."""
        if label is None or (root := self.root(label[0])) in self.whole:
            return None
        segments = tuple(self.axis(one) or n for one, n in self.segments.get(root, ()))
        if segments and all(isinstance(one, int) for one in segments):
            return None
        return Axis(self.channels[root], label[1], self.multiples[root], segments)

    def axes(self, labels: Labels, whole: Iterable[Any]) -> tuple[Axis | int, ...]:
        """Return the axes of a tensor or field of these lengths at width 1."""
        return tuple(self.axis(label) or int(n) for label, n in zip(labels, whole, strict=True))
