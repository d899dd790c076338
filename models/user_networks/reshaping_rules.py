"""State how operations that move, split or join axes map the axes of their inputs to those of their
results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from models.user_networks.channel_groups import Groups, Label, Labels
from models.user_networks.operation_values import (
    RUNTIME,
    Field,
    Shape,
    Size,
    Value,
    as_sequence,
    follow,
    make_size,
    release,
    values,
)

__all__ = [
    "attribute",
    "concatenate",
    "expand",
    "flatten",
    "getitem",
    "pad",
    "permute",
    "regroup",
    "reshape",
    "reshape_as",
    "roll",
    "split_axis",
    "transpose",
    "unbind",
]


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


def reshape_as(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels:
    x, other = values(args, kwargs)
    return regroup(groups, x, shape, tuple(map(make_size, other.labels, other.shape)))


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


def expand(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label expand: axes of length 1 are repeated, the others keep their channels."""
    x, sizes = args[0], as_sequence(args[1:])
    if len(sizes) != len(shape):
        return None
    new = len(shape) - len(x.shape)
    repeated = [size for n, size in zip(x.shape, sizes[new:], strict=True) if n == 1]
    kept = [
        None if n == 1 else follow(groups, size, label)
        for label, n, size in zip(x.labels, x.shape, sizes[new:], strict=True)
    ]
    release(groups, *sizes[:new], *repeated)
    return (*(None for _ in range(new)), *kept)


def transpose(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    x, *axes = args
    if len(axes) != 2 or not all(isinstance(axis, int) for axis in axes):
        return None
    order = list(x.labels)
    order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
    return tuple(order)


def attribute(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label attributes that are tensors: x.mT and x.T of a matrix."""
    x, name = args
    if name == "mT" or (name == "T" and len(shape) == 2):
        return (*x.labels[:-2], x.labels[-1], x.labels[-2])
    return None


def permute(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    x, axes = args[0], as_sequence(args[1:])
    return (
        tuple(x.labels[axis] for axis in axes)
        if len(axes) == len(shape) and all(isinstance(axis, int) for axis in axes)
        else None
    )


def getitem(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label x[...] with whole numbers, slices and None: only a slice of all channels keeps them."""
    x, index = args
    index = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, Value) or not all(i is None or isinstance(i, int | slice) for i in index):
        return None
    left, sizes, out = list(x.labels), list(x.shape), []
    for i in index:
        label, n = (None, 1) if i is None else (left.pop(0), sizes.pop(0))
        if i is not None and not takes_all(i, n):
            groups.freeze((label,))
            label = None
        if not isinstance(i, int):
            out.append(label)
    return (*out, *left)


def takes_all(index: int | slice, length: int) -> bool:
    """Return True if an index takes all entries of an axis and those of any shorter one."""
    return (
        isinstance(index, slice)
        and index.start in {None, 0}
        and index.step in {None, 1}
        and (index.stop is None or (isinstance(index.stop, int) and index.stop >= length))
    )


def concatenate(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Concatenate along any axis; concatenated channels are segments of one axis."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not isinstance(axis, int):
        return None
    parts = values(args[0], kwargs)
    axis %= len(shape)
    return tuple(
        groups.compose([(x.labels[axis], x.shape[axis]) for x in parts])
        if i == axis
        else reduce(groups.join, (x.labels[i] for x in parts))
        for i in range(len(shape))
    )


def split_axis(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Shape]
) -> tuple[Labels, ...] | None:
    """Label the results of chunk, and of split with sizes that follow the width."""
    x, *rest = args
    axis = kwargs.get("dim", rest[1] if len(rest) > 1 else 0)
    size = next((kwargs[k] for k in ("chunks", "split_size") if k in kwargs), *rest[:1] or (None,))
    if not isinstance(axis, int):
        return None
    axis %= len(x.shape)
    label, lengths = x.labels[axis], [shape[axis] for shape in shapes]
    if isinstance(size, Sequence):
        parts = groups.split_axis(label, lengths)
        parts = [follow(groups, *pair) for pair in zip(size, parts, strict=True)]
    elif len({*lengths}) > 1:
        return None
    else:
        inner = groups.divide_axis(label, len(shapes))
        if inner is not None and (isinstance(size, Field | Size) or size != len(shapes)):
            inner = follow(groups, size, inner)
        parts = [inner] * len(shapes)
    return tuple((*x.labels[:axis], part, *x.labels[axis + 1 :]) for part in parts)


def unbind(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Shape]
) -> tuple[Labels, ...] | None:
    x, *rest = args
    axis = kwargs.get("dim", rest[0] if rest else 0)
    if not isinstance(axis, int) or x.labels[axis] is not None:
        return None
    axis %= len(x.shape)
    return ((*x.labels[:axis], *x.labels[axis + 1 :]),) * len(shapes)


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


def roll(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label torch.roll(x, shifts, dims): a rolled axis keeps no channels."""
    x, *rest = args
    axes = kwargs.get("dims", rest[1] if len(rest) > 1 else None)
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(axes, Sequence):
        return None
    rolled = {axis % len(shape) for axis in axes}
    groups.freeze(x.labels[axis] for axis in rolled)
    return tuple(None if i in rolled else label for i, label in enumerate(x.labels))
