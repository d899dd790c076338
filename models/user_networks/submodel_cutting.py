"""Make submodels of a user's network that does not support them: trace it once to find the axes and
blocks that can be cut, then cut each copy that is built.

Blocks that can be left out are runs of one class that keep the shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from models.extension_lookup import locate_failure
from models.layers.basic import Linear, Norm, Scaler
from models.user_networks.channel_groups import Axis, Groups, length, spans
from models.user_networks.operation_values import Value
from models.user_networks.tracing import Call, label_tensors, named_tensors, trace

__all__ = ["Structure", "add_scalers", "cut", "find_structure", "first_line"]


@dataclass(frozen=True)
class Structure:
    """Plan for cutting a network.

    axes: axes of each tensor that scales, by its name
    fields: attributes of layers that hold sizes of those axes, by (layer, attribute)
    sections: names of the blocks of each section; all but a section's first can be left out
    problem: why nothing can be narrowed, or ""
    obstacles: operations and layers whose channels stay whole, in order
    """

    axes: Mapping[str, tuple[Axis | int, ...]] = field(default_factory=dict)
    fields: Mapping[tuple[str, str], Axis | tuple[Axis | int, ...]] = field(default_factory=dict)
    sections: tuple[tuple[str, ...], ...] = ()
    problem: str = ""
    obstacles: tuple[str, ...] = ()


def find_structure(net: nn.Module, example: Tensor) -> Structure:
    """Trace a network on the meta device with the batch `example`, and return its structure. The
    network is unusable afterwards.
    """
    groups = Groups()
    try:
        # a network may behave differently in training: the rules must hold for both modes
        for training in (True, False):
            graph, calls = trace(net.train(training), example)
            found = label_tensors(net, graph, example, groups)
    except Exception as error:  # a user's network can make the tracer raise anything
        return Structure(problem=describe_trace_failure(error))
    sections = find_sections(net, calls, found)
    groups.place = "a block that can be left out"
    for name in itertools.chain.from_iterable(section[1:] for section in sections):
        before, after = (found[node].labels for node in calls[name][0] or ())
        for pair in zip(before, after, strict=True):
            groups.join(*pair)
    return resolve(net, groups, sections)


def resolve(net: nn.Module, groups: Groups, sections: tuple[tuple[str, ...], ...]) -> Structure:
    """Convert groups of channels to axes by tensor name, without tensors that stay whole."""
    axes = {
        name: groups.axes(groups.tensors[id(t)][1], t.shape)
        for name, t in named_tensors(net)
        if id(t) in groups.tensors
    }
    names = {module: name for name, module in net.named_modules()}
    fields: dict[tuple[str, str], Any] = {}
    for (layer, attribute), label in groups.fields.items():
        if label is None or isinstance(label[0], int):
            fields[names[layer], attribute] = groups.axis(label)
        else:
            fields[names[layer], attribute] = groups.axes(label, getattr(layer, attribute))
    scaling = {name: one for name, one in axes.items() if any(isinstance(n, Axis) for n in one)}
    first = (
        f"; the first obstacle is {groups.obstacles[0]}"
        if groups.obstacles
        else ": it has no hidden channels"
    )
    problem = "" if scaling else f"no part of it can be narrowed{first}"
    return Structure(
        scaling,
        {place: one for place, one in fields.items() if one is not None},
        sections,
        problem,
        tuple(dict.fromkeys(groups.obstacles)),
    )


def describe_trace_failure(error: Exception) -> str:
    """Return why torch.fx cannot trace a network, and the line at which it stopped."""
    if isinstance(error, fx.proxy.TraceError) and "control flow" in str(error):
        place = locate_failure(error).partition(":")[0]
        return (
            f"torch.fx cannot trace its forward pass, which branches on values of the input {place}"
        )
    return f"torch.fx cannot trace its forward pass ({first_line(error)})"


def first_line(error: Exception) -> str:
    """Return the type and first line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def cut(
    net: nn.Module, structure: Structure, width: float, mask: Sequence[Sequence[int]]
) -> nn.Module:
    """Replace the blocks that the mask drops with the identity, and cut every tensor to its leading
    corner; in place.
    """
    for names, section in zip(structure.sections, mask, strict=True):
        for name, keep in zip(names, section, strict=True):
            if not keep:
                put(net, name, nn.Identity())
    shared: dict[int, Tensor] = {}  # a tensor shared under two names stays shared
    for name, tensor in list(named_tensors(net)):
        if name in structure.axes:
            corner = take(tensor.detach(), structure.axes[name], width)
            smaller = (
                nn.Parameter(corner, tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else corner
            )
            put(net, name, shared.setdefault(id(tensor), smaller))
    kept = dict(net.named_modules())
    for (name, attribute), axis in structure.fields.items():
        if name in kept:
            setattr(
                kept[name],
                attribute,
                tuple(length(one, width) for one in axis)
                if isinstance(axis, tuple)
                else length(axis, width),
            )
    return net


def take(tensor: Tensor, axes: Sequence[Axis | int], width: float) -> Tensor:
    """Return a copy of the entries of a tensor that a width keeps."""
    for index, axis in enumerate(axes):
        kept = spans(axis, width)
        pieces = [tensor.narrow(index, start, stop - start) for start, stop in kept]
        tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces, index)
    return tensor.clone()


def put(net: nn.Module, name: str, value: nn.Module | Tensor) -> None:
    """Replace a module or a tensor of a network by name."""
    parent, _, key = name.rpartition(".")
    setattr(net.get_submodule(parent), key, value)


def add_scalers(net: nn.Module, structure: Structure, rate: float) -> nn.Module:
    """Add a Scaler to each batch norm that was cut, or, if there are none, after each layer whose
    outputs were cut (see `models.layers.basic.scale`).
    """
    layers = {
        name: module
        for name, module in net.named_modules()
        if not isinstance(module, Norm | Linear)
    }
    norms = [
        layers[name]
        for name, attribute in structure.fields
        if attribute == "num_features" and name in layers
    ]
    outputs = [
        layers[name]
        for name, attribute in structure.fields
        if attribute in {"out_channels", "out_features"} and name in layers
    ]
    for layer in norms or outputs:
        layer.add_module("scaler", Scaler(rate))
        if norms:
            layer.register_forward_pre_hook(
                lambda layer, args, eps=layer.eps: setattr(
                    layer, "eps", layer.scaler.scale_eps(eps)
                )
            )
        else:
            layer.register_forward_hook(lambda layer, args, out: layer.scaler(out))
    return net


Calls = Mapping[str, Sequence[Call]]
Tensors = Mapping[fx.Node, Value]


def find_sections(net: nn.Module, calls: Calls, found: Tensors) -> tuple[tuple[str, ...], ...]:
    """Return the names of the blocks of each section, outermost first; all but a section's first
    can be left out.
    """
    sections: list[tuple[str, ...]] = []
    for path, container in net.named_modules():
        inside = any(path.startswith(f"{block}.") for section in sections for block in section)
        if isinstance(container, nn.Sequential | nn.ModuleList) and not inside:
            sections += [
                tuple(run) for run in find_runs(net, path, container, calls, found) if len(run) > 1
            ]
    return tuple(sections)


def find_runs(
    net: nn.Module, path: str, container: nn.Module, calls: Calls, found: Tensors
) -> list[list[str]]:
    """Return the runs of consecutive blocks among a container's children. A block that does not
    follow the previous one begins a new run.
    """
    runs: list[list[str]] = [[]]
    for key, child in container.named_children():
        name = f"{path}.{key}" if path else key
        if not is_block(child, calls.get(name, ())):
            runs.append([])
        elif runs[-1] and follows(net, runs[-1][-1], name, calls, found):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def is_block(module: nn.Module, calls: Sequence[Call]) -> bool:
    """Return True if a module has layers, is not a mere `nn.Sequential`, and is called once with
    one tensor in and out.
    """
    return (
        not isinstance(module, nn.Sequential)
        and any(True for _ in module.children())
        and len(calls) == 1
        and calls[0] is not None
    )


def follows(net: nn.Module, last: str, name: str, calls: Calls, found: Tensors) -> bool:
    """Return True if a block has the previous one's class, takes its output and keeps the shape."""
    one, other = calls[last][0], calls[name][0]
    assert one is not None
    assert other is not None
    if type(net.get_submodule(last)) is not type(net.get_submodule(name)) or one[1] is not other[0]:
        return False
    return (
        other[0] in found and other[1] in found and found[other[0]].shape == found[other[1]].shape
    )
