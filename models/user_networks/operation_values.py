"""Describe the values of a traced forward pass: tensors with labelled axes, sizes read from shapes,
and numbers that layers keep as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx.node import map_aggregate

from models.user_networks.channel_groups import Groups, Label, Labels

__all__ = [
    "RUNTIME",
    "Field",
    "OperationRule",
    "Shape",
    "Size",
    "Value",
    "as_sequence",
    "follow",
    "make_size",
    "read_size",
    "release",
    "values",
]

RUNTIME: Any = object()
"""Placeholder for an argument that the forward pass computes, such as a size, which follows the
width.
"""


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor in the forward pass."""

    shape: Shape
    labels: Labels


@dataclass(frozen=True)
class Size:
    """A size that the forward pass reads from a shape: the length of an axis with this label,
    divided by `parts`. parts: 0 after other arithmetic.
    """

    label: Label
    parts: int = 1


class Field(int):
    """A whole number that a layer of the user's keeps as an attribute, alone or in a tuple. It can
    follow a width.
    """

    layer: Any
    name: str
    index: int | None = None  # in the tuple


OperationRule = Callable[[Groups, Sequence[Any], Mapping[str, Any], Shape], Labels | None]
"""(groups, positional arguments, named arguments, shape of the result) -> labels of the result"""


def values(*given: Any) -> list[Value]:
    """Return every tensor within nested arguments."""
    found: list[Value] = []
    map_aggregate(given, lambda leaf: found.append(leaf) if isinstance(leaf, Value) else None)
    return found


def follow(
    groups: Groups, size: Any, label: Label | None, *, whole: Label | None = None, parts: int = 1
) -> Label | None:
    """Return the label of an axis whose size the forward pass gives: it stays whole if that size
    does not follow the width. whole: of the axis that was divided into `parts`.
    """
    if label is None:
        release(groups, size)
    elif isinstance(size, Size):
        if whole is not None and size.parts == parts:
            groups.join(whole, size.label)
        elif size.parts != 1:
            groups.freeze((label, size.label))
        elif not groups.have_same_length(size.label, label):
            label = groups.join(size.label, label)
    elif isinstance(size, Field):
        if (known := groups.follow_field(size, label)) is not None:
            label = groups.join(known, label)
    elif size is not RUNTIME and size != -1:
        groups.freeze((label,))
    else:
        return label
    return None if label is None or groups.root(label[0]) in groups.whole else label


def release(groups: Groups, *sizes: Any) -> None:
    """Keep the axes whole whose lengths an operation needs at full size."""
    groups.freeze(size.label for size in sizes if isinstance(size, Size))


def read_size(name: str, args: Sequence[Any], result: Any) -> Any:
    """Return a value of the forward pass that is not a tensor: a size with the axis that it was
    read from, a plain number if it does not depend on the width, a tuple of them, or RUNTIME.
    """
    x = args[0] if args else None
    if isinstance(x, Value) and name in {"getattr", "size"} and isinstance(result, tuple):
        return tuple(map(make_size, x.labels, result))
    if isinstance(x, Value) and name == "size" and len(args) == 2 and isinstance(args[1], int):
        return make_size(x.labels[args[1]], result)
    if isinstance(x, tuple) and name == "getitem" and isinstance(args[1], int | slice):
        return x[args[1]]
    if isinstance(x, Size) and name == "floordiv" and isinstance(args[1], int):
        return Size(x.label, x.parts * args[1])
    if isinstance(result, int) and all(isinstance(one, int) for one in args):
        return result
    return RUNTIME


def make_size(label: Label | None, size: int) -> Any:
    return size if label is None else Size(label)


def as_sequence(args: Sequence[Any]) -> Sequence[Any]:
    """Return the sizes of f(x, 1, 2) or f(x, (1, 2)) as a sequence."""
    return args[0] if args and isinstance(args[0], Sequence) else args
