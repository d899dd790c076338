"""State how layers that are called as functions, and products of tensors, map the axes of their
inputs and parameters to those of their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from models.user_networks.channel_groups import Groups, Label, Labels
from models.user_networks.operation_values import Shape, Value, follow, values

__all__ = [
    "attention",
    "channel_norm",
    "convolution",
    "einsum",
    "elementwise",
    "group_norm",
    "layer_norm",
    "linear",
    "matmul",
    "patch_merging",
    "windowed_attention",
]


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


def einsum(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label einsum(equation, *tensors): axes of one letter are one group."""
    equation, *_ = args
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return None
    inputs, outputs = equation.replace(" ", "").split("->")
    found: dict[str, Label | None] = {}
    for letters, x in zip(inputs.split(","), values(args), strict=True):
        for letter, label, n in zip(letters, x.labels, x.shape, strict=True):
            if n > 1:
                found[letter] = groups.join(found[letter], label) if letter in found else label
    return tuple(found.get(letter) for letter in outputs)


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


def windowed_attention(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label torchvision's shifted_window_attention(x, weight of queries, keys and values, weight of
    the output, bias of positions, window, heads, ...).
    """
    x, projection, output, *more = args
    named = dict(kwargs)
    biases = values(named.pop("qkv_bias", None)), values(named.pop("proj_bias", None))
    groups.freeze(label for one in values(more, named) for label in one.labels)
    found = groups.divide_heads(x.labels[-1], kwargs.get("num_heads", more[2] if more[2:] else 0))
    if found is None:
        return None
    projected, inputs = found
    for one, other in zip(projection.labels, (projected, x.labels[-1]), strict=True):
        groups.join(one, other)
    groups.join(output.labels[1], inputs)
    for bias, label in zip(biases, (projected, output.labels[0]), strict=True):
        join_parameters(groups, bias, label)
    return (*x.labels[:-1], output.labels[0])


def patch_merging(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels:
    """Label torchvision's _patch_merging_pad(x): four neighbours' channels are concatenated."""
    (x,) = args
    return (*(None for _ in shape[1:]), groups.compose([(x.labels[-1], x.shape[-1])] * 4))


def linear(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label F.linear(x, weight, bias)."""
    x, weight, *bias = values(args, kwargs)
    outputs, inputs = weight.labels
    groups.join(inputs, x.labels[-1])
    return (*x.labels[:-1], join_parameters(groups, bias, outputs))


def convolution(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label F.conv1d, conv2d and conv3d."""
    x, weight, *bias = values(args, kwargs)
    divisor = kwargs.get("groups", args[6] if len(args) > 6 else 1)
    if len(x.shape) != len(weight.shape) or any(x.labels[2:]):
        return None
    outputs, inputs, *kernel = weight.labels
    groups.freeze(kernel, blame=False)
    if divisor == 1:
        groups.join(inputs, x.labels[1])
    elif divisor == x.shape[1] == weight.shape[0]:
        outputs = follow(groups, divisor, groups.join(outputs, x.labels[1]))
    elif divisor == x.shape[1] or not isinstance(divisor, int):
        return None
    else:
        groups.join(inputs, groups.divide_axis(x.labels[1], divisor))
        groups.divide_axis(outputs, divisor)
    outputs = join_parameters(groups, bias, outputs)
    return (x.labels[0], outputs, *(None for _ in shape[2:]))


def channel_norm(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels:
    """Label F.batch_norm and F.instance_norm: each parameter and statistic has one value per
    channel.
    """
    x, *parameters = values(args, kwargs)
    return (x.labels[0], join_parameters(groups, parameters, x.labels[1]), *x.labels[2:])


def group_norm(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label F.group_norm(x, num_groups, weight, bias)."""
    x, *parameters = values(args, kwargs)
    divisor = kwargs.get("num_groups", args[1] if len(args) > 1 else None)
    label = join_parameters(groups, parameters, x.labels[1])
    if not isinstance(divisor, int):
        return None
    if divisor == x.shape[1]:
        label = follow(groups, divisor, label)
    else:
        groups.divide(label, divisor)
    return (x.labels[0], label, *x.labels[2:])


def layer_norm(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label F.layer_norm and F.rms_norm over the last axis, whose size is the second argument."""
    x, *parameters = values(args, kwargs)
    sizes = kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())
    if not isinstance(sizes, Sequence) or len(sizes) != 1:
        return None
    label = join_parameters(groups, parameters, x.labels[-1])
    return (*x.labels[:-1], follow(groups, sizes[0], label))


def join_parameters(
    groups: Groups, parameters: Sequence[Value], label: Label | None
) -> Label | None:
    """Return the label of an axis after parameters of one axis have the same channels."""
    return reduce(groups.join, (one.labels[0] for one in parameters), label)
