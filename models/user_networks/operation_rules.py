"""State for each operation how the axes of its inputs map to those of its result.

A rule returns the labels of its result, or None if it does not apply: everything that the operation
touches then stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch.fx.node import map_aggregate

from models.user_networks.channel_groups import Groups, Label, Labels

__all__ = [
    "RUNTIME",
    "SEVERAL",
    "Field",
    "Shape",
    "Value",
    "elementwise",
    "operation_rule",
    "read_size",
    "regroup",
    "release",
    "spatial",
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
    """A whole number that a layer of the user's keeps as an attribute, which can follow a width."""

    layer: Any
    name: str


OperationRule = Callable[[Groups, Sequence[Any], Mapping[str, Any], Shape], Labels | None]
"""(groups, positional arguments, named arguments, shape of the result) -> labels of the result"""


def values(*given: Any) -> list[Value]:
    """Return every tensor within nested arguments."""
    found: list[Value] = []
    map_aggregate(given, lambda leaf: found.append(leaf) if isinstance(leaf, Value) else None)
    return found


def elementwise(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels:
    """Join the axes that meet in elementwise operations with broadcasting."""
    out: list[Label | None] = []
    for axis in range(-len(shape), 0):
        met = [
            x.labels[axis]
            for x in values(args, kwargs)
            if len(x.shape) >= -axis and x.shape[axis] == shape[axis] > 1
        ]
        out.append(reduce(groups.join, met) if met else None)
    return tuple(out)


def spatial(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label operations on each channel separately, over axes 2 and later: pooling, padding,
    interpolation.
    """
    x = args[0]
    kept = len(shape) == len(x.shape) and shape[:2] == x.shape[:2] and not any(x.labels[2:])
    return (*x.labels[:2], *(None for _ in shape[2:])) if kept else None


def reduce_axes(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label means and other reductions over axes, channels included."""
    x, *rest = args
    axes = kwargs.get("dim", kwargs.get("axis", rest[0] if rest else tuple(range(len(x.shape)))))
    axes = (axes,) if type(axes) is int else axes
    if not isinstance(axes, Sequence) or not all(type(axis) is int for axis in axes):
        return None
    removed = {axis % len(x.shape) for axis in axes}
    left = tuple(None if i in removed else label for i, label in enumerate(x.labels))
    return (
        left
        if len(shape) == len(left)
        else tuple(label for i, label in enumerate(left) if i not in removed)
    )


def reshape(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label view and reshape: channels may go only to an axis whose size is -1 or computed, since a
    literal size does not follow the width.
    """
    x, sizes = args[0], as_sequence(args[1:])
    if len(sizes) != len(shape):
        return None
    return regroup(groups, x, shape, sizes)


def flatten(groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape) -> Labels:
    return regroup(groups, args[0], shape, [RUNTIME] * len(shape))


def as_sequence(args: Sequence[Any]) -> Sequence[Any]:
    """Return the sizes of f(x, 1, 2) or f(x, (1, 2)) as a sequence."""
    return args[0] if args and isinstance(args[0], Sequence) else args


def regroup(groups: Groups, x: Value, shape: Shape, sizes: Sequence[Any]) -> Labels:
    """Merge or split axes in row-major order. Of merged axes only one may be channels: the first,
    so that the result stays channel-major, or the last, as the heads of attention have. Of the axes
    that channels are split into, only the last gets channels, if its size follows the width.
    """
    out: list[Label | None] = [None] * len(shape)
    for before, after in segments(x.shape, shape):
        labels = [x.labels[axis] for axis in before]
        last, size = after[-1], sizes[after[-1]]
        if not any(labels):
            release(groups, size)
        elif len(after) == 1 and labels[0] is not None and not any(labels[1:]):
            first, more = labels[0], math.prod(x.shape[axis] for axis in before[1:])
            out[last] = follow(groups, size, (first[0], first[1] * more))
        elif len(after) == 1 and not any(labels[:-1]):
            parts = math.prod(x.shape[axis] for axis in before[:-1])
            made = groups.compose([(labels[-1], x.shape[before[-1]])] * parts)
            out[last] = follow(groups, size, made)
        elif len(before) == 1:
            parts = math.prod(shape[axis] for axis in after[:-1])
            inner = groups.divide_axis(labels[0], parts)
            out[last] = follow(groups, size, inner, whole=labels[0], parts=parts)
        else:
            groups.freeze(labels)
            release(groups, size)
    return tuple(out)


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
        elif size.parts == 1:
            label = groups.join(size.label, label)
        else:
            groups.freeze((label, size.label))
    elif isinstance(size, Field):
        known = groups.fields.get((size.layer, size.name))
        groups.note(size.layer, **{size.name: label})
        if known is not None:
            label = groups.join(known, label)  # type: ignore[arg-type]
    elif size is not RUNTIME and size != -1:
        groups.freeze((label,))
    else:
        return label
    return None if label is None or groups.root(label[0]) in groups.whole else label


def release(groups: Groups, *sizes: Any) -> None:
    """Keep the axes whole whose lengths an operation needs at full size."""
    groups.freeze(size.label for size in sizes if isinstance(size, Size))


def segments(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of axes of two shapes that hold the same entries, ignoring axes of
    length 1.
    """
    left, right = (
        [i for i, n in enumerate(before) if n > 1],
        [i for i, n in enumerate(after) if n > 1],
    )
    found = []
    while left and right:
        here, there = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(before[i] for i in here)) != (
            b := math.prod(after[i] for i in there)
        ):
            (here if a < b else there).append((left if a < b else right).pop(0))
        found.append((here, there))
    return found


def transpose(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    x, *axes = args
    if len(axes) != 2 or not all(type(axis) is int for axis in axes):
        return None
    order = list(x.labels)
    order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
    return tuple(order)


def permute(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    x, axes = args[0], as_sequence(args[1:])
    return (
        tuple(x.labels[axis] for axis in axes)
        if len(axes) == len(shape) and all(type(axis) is int for axis in axes)
        else None
    )


def getitem(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label x[...] with whole numbers, slices and None: only a full slice keeps channels."""
    x, index = args
    index = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, Value) or not all(
        type(i) is int or i is None or isinstance(i, slice) for i in index
    ):
        return None
    left, out = list(x.labels), []
    for i in index:
        label = None if i is None else left.pop(0)
        if i is not None and i != slice(None):
            groups.freeze((label,))
            label = None
        if type(i) is not int:
            out.append(label)
    return (*out, *left)


def concatenate(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Concatenate along any axis; concatenated channels are segments of one axis."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if type(axis) is not int:
        return None
    parts = values(args[0], kwargs)
    axis %= len(shape)
    return tuple(
        groups.compose([(x.labels[axis], x.shape[axis]) for x in parts])
        if i == axis
        else reduce(groups.join, (x.labels[i] for x in parts))
        for i in range(len(shape))
    )


def matmul(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label the product of two batches of matrices: the axis that is summed over is one group."""
    found = values(args, kwargs)
    if len(found) != 2 or min(len(x.shape) for x in found) < 2:
        return None
    one, other = found
    groups.join(one.labels[-1], other.labels[-2])
    batch = elementwise(
        groups,
        [Value(x.shape[:-2], x.labels[:-2]) for x in found],
        {},
        shape[:-2],
    )
    return (*batch, one.labels[-2], other.labels[-1])


def attention(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label scaled dot-product attention: queries and keys have the same channels."""
    found = values(args[:3], kwargs)
    if len(found) < 3 or values(args[3:]) or len(found) > 3:
        return None
    query, key, value = found
    groups.join(query.labels[-1], key.labels[-1])
    return (*query.labels[:-1], value.labels[-1])


def split_axis(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Shape]
) -> tuple[Labels, ...] | None:
    """Label the results of chunk, and of split with a size that follows the width."""
    x, *rest = args
    axis = kwargs.get("dim", rest[1] if len(rest) > 1 else 0)
    size = kwargs.get("chunks", rest[0] if rest else RUNTIME)
    if type(axis) is not int or len({shape[axis] for shape in shapes}) > 1:
        return None
    label = x.labels[axis]
    inner = groups.divide_axis(label, len(shapes))
    if inner is not None and (isinstance(size, Field | Size) or size != len(shapes)):
        inner = follow(groups, size, inner)
    axis %= len(x.shape)
    return ((*x.labels[:axis], inner, *x.labels[axis + 1 :]),) * len(shapes)


def unbind(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Shape]
) -> tuple[Labels, ...] | None:
    x, *rest = args
    axis = kwargs.get("dim", rest[0] if rest else 0)
    if type(axis) is not int or x.labels[axis] is not None:
        return None
    axis %= len(x.shape)
    return ((*x.labels[:axis], *x.labels[axis + 1 :]),) * len(shapes)


def read_size(name: str, args: Sequence[Any], result: Any) -> Any:
    """Return a value of the forward pass that is no tensor: a size with the axis that it was read
    from, a tuple of them, or RUNTIME.
    """
    x = args[0] if args else None
    if isinstance(x, Value) and name in {"getattr", "size"} and isinstance(result, tuple):
        return tuple(map(make_size, x.labels))
    if isinstance(x, Value) and name == "size" and len(args) == 2 and type(args[1]) is int:
        return make_size(x.labels[args[1]])
    if isinstance(x, tuple) and name == "getitem" and isinstance(args[1], int | slice):
        return x[args[1]]
    if isinstance(x, Size) and name == "floordiv" and isinstance(args[1], int):
        return Size(x.label, x.parts * args[1])
    return RUNTIME


def make_size(label: Label | None) -> Any:
    return RUNTIME if label is None else Size(label)


def pad(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label F.pad: an axis that grows no longer holds channels."""
    x = args[0]
    changed = [label for label, a, b in zip(x.labels, x.shape, shape, strict=True) if a != b]
    groups.freeze(changed)
    return tuple(
        label if a == b else None for label, a, b in zip(x.labels, x.shape, shape, strict=True)
    )


ELEMENTWISE = """
    abs add celu clamp clamp_max clamp_min clone contiguous detach div dropout dropout1d dropout2d
    dropout3d elu exp expand_as float floordiv gelu half hardsigmoid hardswish hardtanh iadd imul
    isub itruediv leaky_relu log log_softmax logsigmoid masked_fill maximum minimum mish mul
    multiply neg normalize ones_like pow relu relu6 rsqrt rsub selu sigmoid silu softmax softplus
    softsign sqrt square stochastic_depth sub subtract tanh to true_divide truediv where
    zeros_like
"""
SPATIAL = "adaptive_avg_pool adaptive_max_pool avg_pool lp_pool max_pool"

OPERATIONS: dict[str, OperationRule] = {
    **dict.fromkeys(ELEMENTWISE.split(), elementwise),
    **dict.fromkeys((f"{name}{n}d" for name in SPATIAL.split() for n in (1, 2, 3)), spatial),
    **dict.fromkeys(("interpolate", "upsample"), spatial),
    **dict.fromkeys(("amax", "amin", "logsumexp", "mean", "std", "sum", "var"), reduce_axes),
    **dict.fromkeys(("reshape", "view"), reshape),
    **dict.fromkeys(("flatten", "squeeze", "unsqueeze"), flatten),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenate),
    **dict.fromkeys(("swapaxes", "transpose"), transpose),
    "getitem": getitem,
    "matmul": matmul,
    "pad": pad,
    "permute": permute,
    "scaled_dot_product_attention": attention,
}

SEVERAL: dict[str, Callable[..., tuple[Labels, ...] | None]] = {
    "chunk": split_axis,
    "split": split_axis,
    "unbind": unbind,
}
"""Rules for operations with several results; they get the shapes of all."""


def operation_rule(name: str) -> OperationRule | None:
    """Return the rule for a function or method; an in-place variant (trailing underscore) has the
    same rule.
    """
    return OPERATIONS.get(name.rstrip("_"))
