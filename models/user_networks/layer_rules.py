"""State for each kind of layer which axes of its tensors shrink with its input channels, and which
begin a new group of channels.

A rule returns the labels of its result, or None if it does not apply: then the layer's input,
tensors and result keep their full size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from models.user_networks.channel_groups import Groups, Labels
from models.user_networks.operation_rules import spatial
from models.user_networks.operation_values import RUNTIME, Shape, Value
from models.user_networks.reshaping_rules import regroup

__all__ = ["SEVERAL_LAYERS", "layer_rule"]

LayerRule = Callable[[Groups, Any, Value, Shape], Labels | None]
"""(groups, layer, input, shape of the result) -> labels of the result"""


def linear(groups: Groups, layer: nn.Linear, x: Value, shape: Shape) -> Labels:
    outputs, inputs = groups.claim(layer.weight, (groups.new(layer.out_features), x.labels[-1]))
    groups.claim(layer.bias, (outputs,))
    groups.note(layer, in_features=inputs, out_features=outputs)
    return (*x.labels[:-1], outputs)


def convolution(groups: Groups, layer: _ConvNd, x: Value, shape: Shape) -> Labels | None:
    if len(x.shape) != layer.weight.ndim or any(x.labels[2:]):
        return None
    inputs, outputs = x.labels[1], groups.new(layer.out_channels)
    if layer.groups == 1 and isinstance(layer, _ConvTransposeNd):
        inputs, outputs, *_ = groups.claim(layer.weight, (inputs, outputs))
    elif layer.groups == 1:
        outputs, inputs, *_ = groups.claim(layer.weight, (outputs, inputs))
    elif layer.groups == layer.in_channels and not isinstance(layer, _ConvTransposeNd):
        several = layer.out_channels // layer.in_channels  # filters of one channel are adjacent
        outputs, *_ = groups.claim(
            layer.weight, (None if inputs is None else (inputs[0], inputs[1] * several),)
        )
        groups.note(layer, groups=inputs)
    elif isinstance(layer, _ConvTransposeNd):
        return None
    else:
        # each group of filters reads, and makes, channels of its own
        one = groups.new(layer.out_channels // layer.groups)
        outputs = groups.compose([(one, layer.out_channels // layer.groups)] * layer.groups)
        inner = groups.divide_axis(inputs, layer.groups)
        outputs, *_ = groups.claim(layer.weight, (outputs, inner))
    groups.claim(layer.bias, (outputs,))
    groups.note(layer, in_channels=inputs, out_channels=outputs)
    return (x.labels[0], outputs, *(None for _ in shape[2:]))


def per_channel(groups: Groups, layer: Any, x: Value, shape: Shape) -> Labels:
    """Batch and instance norm: one weight, bias, mean and variance per channel."""
    for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        groups.claim(tensor, (x.labels[1],))
    groups.note(layer, num_features=x.labels[1])
    return x.labels


def group_norm(groups: Groups, layer: nn.GroupNorm, x: Value, shape: Shape) -> Labels:
    for tensor in (layer.weight, layer.bias):
        groups.claim(tensor, (x.labels[1],))
    groups.note(layer, num_channels=x.labels[1])
    if layer.num_groups == layer.num_channels:
        groups.note(layer, num_groups=x.labels[1])
    else:
        groups.divide(x.labels[1], layer.num_groups)
    return x.labels


def layer_norm(groups: Groups, layer: nn.LayerNorm | nn.RMSNorm, x: Value, shape: Shape) -> Labels:
    last = x.labels[-len(layer.normalized_shape) :]
    for tensor in (layer.weight, getattr(layer, "bias", None)):
        groups.claim(tensor, last)
    groups.note(layer, normalized_shape=last)
    return x.labels


def prelu(groups: Groups, layer: nn.PReLU, x: Value, shape: Shape) -> Labels:
    if layer.num_parameters > 1:
        groups.claim(layer.weight, (x.labels[1],))
        groups.note(layer, num_parameters=x.labels[1])
    return x.labels


def keep_labels(groups: Groups, layer: nn.Module, x: Value, shape: Shape) -> Labels | None:
    return x.labels if shape == x.shape else None


def spatial_layer(groups: Groups, layer: nn.Module, x: Value, shape: Shape) -> Labels | None:
    return spatial(groups, (x,), {}, shape)


def flatten(groups: Groups, layer: nn.Flatten, x: Value, shape: Shape) -> Labels:
    return regroup(groups, x, shape, [RUNTIME] * len(shape))


def multihead_attention(
    groups: Groups, layer: nn.MultiheadAttention, given: Sequence[Value], shapes: Sequence[Shape]
) -> tuple[Labels, ...] | None:
    """Attention whose queries, keys and values are read from the same number of channels."""
    if len(given) != 3 or layer.in_proj_weight is None or layer.bias_k is not None:
        return None
    whole = reduce(groups.join, (x.labels[-1] for x in given))
    found = groups.divide_heads(whole, layer.num_heads)
    if found is None:
        return None
    projected, inputs = found
    outputs = groups.new(layer.embed_dim)
    groups.claim(layer.in_proj_weight, (projected, whole))
    groups.claim(layer.in_proj_bias, (projected,))
    groups.claim(layer.out_proj.weight, (outputs, inputs))
    groups.claim(layer.out_proj.bias, (outputs,))
    groups.note(
        layer,
        embed_dim=whole,
        kdim=whole,
        vdim=whole,
        head_dim=groups.divide_axis(whole, layer.num_heads),
    )
    groups.note(layer.out_proj, in_features=inputs, out_features=outputs)
    return (*given[0].labels[:-1], outputs), *((None,) * len(shape) for shape in shapes[1:])


LAYERS: dict[type[nn.Module], LayerRule] = {
    nn.Linear: linear,
    _ConvNd: convolution,
    _NormBase: per_channel,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: layer_norm,
    nn.PReLU: prelu,
    nn.Flatten: flatten,
    nn.Identity: keep_labels,
    nn.LocalResponseNorm: keep_labels,
}

KINDS: dict[str, LayerRule] = {
    "torch.nn.modules.activation": keep_labels,
    "torch.nn.modules.dropout": keep_labels,
    "torch.nn.modules.padding": spatial_layer,
    "torch.nn.modules.pooling": spatial_layer,
    "torch.nn.modules.upsampling": spatial_layer,
}

TENSORS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


SEVERAL_LAYERS: dict[type[nn.Module], Callable[..., tuple[Labels, ...] | None]] = {
    nn.MultiheadAttention: multihead_attention,
}
"""Rules for layers of several inputs or results: (groups, layer, inputs, shapes of results)"""


def layer_rule(layer: nn.Module) -> LayerRule | None:
    """Return the rule for a layer, or None if the layer is unknown or has other tensors than its
    kind.
    """
    if parametrize.is_parametrized(layer) or not {*layer._parameters, *layer._buffers} <= TENSORS:
        return None
    known = next((LAYERS[kind] for kind in type(layer).__mro__ if kind in LAYERS), None)
    return known or (None if layer._parameters else KINDS.get(type(layer).__module__))
