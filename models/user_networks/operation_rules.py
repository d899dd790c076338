"""State for each operation how the axes of its inputs map to those of its result.

A rule returns the labels of its result, or None if it does not apply: everything that the operation
touches then stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.user_networks.channel_groups import Groups, Labels
from models.user_networks.functional_layer_rules import (
    attention,
    channel_norm,
    convolution,
    einsum,
    elementwise,
    group_norm,
    layer_norm,
    linear,
    matmul,
    patch_merging,
    windowed_attention,
)
from models.user_networks.operation_values import OperationRule, Shape, as_sequence, release
from models.user_networks.reshaping_rules import (
    attribute,
    concatenate,
    expand,
    flatten,
    getitem,
    pad,
    permute,
    reshape,
    reshape_as,
    roll,
    split_axis,
    transpose,
    unbind,
)

__all__ = ["SEVERAL", "operation_rule", "spatial"]


def spatial(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label operations on each channel separately, over axes 2 and later: pooling, padding,
    interpolation.
    """
    x = args[0]
    kept = len(shape) == len(x.shape) and shape[:2] == x.shape[:2] and not any(x.labels[2:])
    return (*x.labels[:2], *(None for _ in shape[2:])) if kept else None


def new_tensor(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels:
    """Label x.new_zeros(size) and the like, which take only the type of x."""
    release(groups, *as_sequence(args[1:]))
    return (None,) * len(shape)


def reduce_axes(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label means and other reductions over axes, channels included."""
    x, *rest = args
    axes = kwargs.get("dim", kwargs.get("axis", rest[0] if rest else tuple(range(len(x.shape)))))
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(axes, Sequence) or not all(isinstance(axis, int) for axis in axes):
        return None
    removed = {axis % len(x.shape) for axis in axes}
    left = tuple(None if i in removed else label for i, label in enumerate(x.labels))
    return (
        left
        if len(shape) == len(left)
        else tuple(label for i, label in enumerate(left) if i not in removed)
    )


def vector_norm(
    groups: Groups, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape
) -> Labels | None:
    """Label x.norm(p, dim)."""
    axes = kwargs.get("dim", args[2] if len(args) > 2 else None)
    return None if axes is None else reduce_axes(groups, args[:1], {"dim": axes}, shape)


ELEMENTWISE = """
    abs add addcdiv addcmul bernoulli celu clamp clamp_max clamp_min clone contiguous detach div
    dropout dropout1d dropout2d dropout3d elu exp expand_as float floordiv gelu half hardsigmoid
    hardswish hardtanh iadd imul isub itruediv leaky_relu log log_softmax logsigmoid masked_fill
    maximum minimum mish mul multiply neg normalize ones_like pow rand_like randn_like relu relu6
    rsqrt rsub selu sigmoid silu softmax softplus softsign sqrt square stochastic_depth sub
    subtract tanh to true_divide truediv where zeros_like
"""


SPATIAL = "adaptive_avg_pool adaptive_max_pool avg_pool lp_pool max_pool"


OPERATIONS: dict[str, OperationRule] = {
    "_patch_merging_pad": patch_merging,
    **dict.fromkeys(ELEMENTWISE.split(), elementwise),
    **dict.fromkeys((f"{name}{n}d" for name in SPATIAL.split() for n in (1, 2, 3)), spatial),
    **dict.fromkeys(("interpolate", "upsample"), spatial),
    **dict.fromkeys(("amax", "amin", "logsumexp", "mean", "std", "sum", "var"), reduce_axes),
    **dict.fromkeys(("reshape", "view"), reshape),
    **dict.fromkeys(("reshape_as", "view_as"), reshape_as),
    **dict.fromkeys(("flatten", "squeeze", "unsqueeze"), flatten),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenate),
    **dict.fromkeys(("new_empty", "new_full", "new_ones", "new_zeros"), new_tensor),
    **dict.fromkeys(("swapaxes", "transpose"), transpose),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(("batch_norm", "instance_norm"), channel_norm),
    **dict.fromkeys(("layer_norm", "rms_norm"), layer_norm),
    "einsum": einsum,
    "expand": expand,
    "getattr": attribute,
    "getitem": getitem,
    "group_norm": group_norm,
    "linear": linear,
    "matmul": matmul,
    "norm": vector_norm,
    "pad": pad,
    "permute": permute,
    "roll": roll,
    "scaled_dot_product_attention": attention,
    "shifted_window_attention": windowed_attention,
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
