"""Rules for operations: how the axes of an operation's inputs map to those of its result.

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

from models.own.channels import Groups, Label, Labels

__all__ = [
    "RUNTIME",
    "Shape",
    "Value",
    "elementwise",
    "operation_rule",
    "regroup",
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
    return regroup(groups, x, shape, [size is RUNTIME or size == -1 for size in sizes])


def flatten(groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape) -> Labels:
    return regroup(groups, args[0], shape, [True] * len(shape))


def as_sequence(args: Sequence[Any]) -> Sequence[Any]:
    """Return the sizes of f(x, 1, 2) or f(x, (1, 2)) as a sequence."""
    return args[0] if args and isinstance(args[0], Sequence) else args


def regroup(groups: Groups, x: Value, shape: Shape, free: Sequence[bool]) -> Labels:
    """Merge or split axes in row-major order. Among merged axes only the first may be channels, so
    that the result stays channel-major.
    """
    out: list[Label | None] = [None] * len(shape)
    for before, after in segments(x.shape, shape):
        labels = [x.labels[axis] for axis in before]
        first = labels[0] if labels else None
        if len(after) == 1 and first is not None and not any(labels[1:]) and free[after[0]]:
            out[after[0]] = first[0], first[1] * math.prod(x.shape[axis] for axis in before[1:])
        else:
            groups.freeze(labels)
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
    """Concatenate along any axis but channels, which would start in the middle."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if type(axis) is not int:
        return None
    parts = values(args[0])
    groups.freeze(x.labels[axis] for x in parts)
    found = [reduce(groups.join, labels) for labels in zip(*(x.labels for x in parts), strict=True)]
    found[axis] = None
    return tuple(found)


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
    "pad": pad,
    "permute": permute,
}


def operation_rule(name: str) -> OperationRule | None:
    """Return the rule for a function or method; an in-place variant (trailing underscore) has the
    same rule.
    """
    return OPERATIONS.get(name.rstrip("_"))
