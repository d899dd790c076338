"""Trace a network's forward pass with torch.fx and one example on the meta device, and apply the
rules for what each step does to channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from models.user_networks.channel_groups import Groups, Labels
from models.user_networks.layer_rules import layer_rule
from models.user_networks.operation_rules import (
    RUNTIME,
    SEVERAL,
    Field,
    Value,
    elementwise,
    operation_rule,
    read_size,
    release,
    values,
)

__all__ = ["Call", "label_tensors", "named_tensors", "trace"]

Call = tuple[fx.Node, fx.Node] | None
"""Input and output of a module's call; None unless each is one tensor."""


class Tracer(fx.Tracer):
    """Trace the forward pass and record each module's inputs and outputs.

    Inherits because fx is designed to be adapted this way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Call]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            super().is_leaf_module(m, module_qualified_name)
            or type(m).__module__ == "models.layers.basic"
        )

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        out = super().call_module(m, forward, args, kwargs)
        one = (
            len(args) == 1
            and not kwargs
            and isinstance(args[0], fx.Proxy)
            and isinstance(out, fx.Proxy)
        )
        self.calls.setdefault(self.path_of_module(m), []).append(
            (args[0].node, out.node) if one else None
        )
        return out


def trace(net: nn.Module) -> tuple[fx.Graph, dict[str, list[Call]]]:
    """Return the graph of a network, and the calls of each module by name."""
    tracer = Tracer()
    mark_fields(net)
    return tracer.trace(net), tracer.calls


def mark_fields(net: nn.Module) -> None:
    """Make whole numbers that modules of other packages keep as attributes recognisable where the
    forward pass uses them as sizes.
    """
    for module in net.modules():
        if type(module).__module__.startswith("torch.nn."):
            continue
        for name, value in vars(module).items():
            if type(value) is int and value > 1:
                marked = Field(value)
                marked.layer, marked.name = module, name
                vars(module)[name] = marked


def label_tensors(
    net: nn.Module, graph: fx.Graph, example: Tensor, groups: Groups
) -> dict[fx.Node, Value]:
    """Return every tensor in the forward pass of an example, with its labels; `groups` collects the
    axes that scale together.
    """
    interpreter = fx.Interpreter(net, garbage_collect_values=False, graph=graph)
    with torch.no_grad():
        interpreter.run(example)
    names, found = dict(named_tensors(net)).keys(), dict[fx.Node, Any]()
    for node in graph.nodes:
        result = interpreter.env[node]
        args, kwargs = map_aggregate(
            (node.args, node.kwargs),
            lambda leaf: found.get(leaf, RUNTIME) if isinstance(leaf, fx.Node) else leaf,
        )
        if node.op == "output":
            groups.freeze((label for x in values(args) for label in x.labels), blame=False)
        elif isinstance(result, Tensor) and node.op == "get_attr":
            own = groups.own(result) if node.target in names else (None,) * result.ndim
            found[node] = Value(tuple(result.shape), own)
        elif name_of(node) == "getitem" and isinstance(args[0], tuple):
            found[node] = args[0][args[1]] if isinstance(args[1], int | slice) else RUNTIME
        elif isinstance(result, Tensor):
            found[node] = Value(
                tuple(result.shape), labels_of(net, node, args, kwargs, tuple(result.shape), groups)
            )
        elif any(isinstance(leaf, Tensor) for leaf in leaves(result)):
            found[node] = several(net, node, args, kwargs, result, groups)
        else:
            found[node] = read_size(name_of(node) or str(node.target), args, result)
    return {node: value for node, value in found.items() if isinstance(value, Value)}


def several(
    net: nn.Module, node: fx.Node, args: Any, kwargs: Any, result: Any, groups: Groups
) -> Any:
    """Return the values of an operation with several results; without a rule, freeze its inputs."""
    groups.place, rule = describe_node(net, node), SEVERAL.get(name_of(node))
    if rule is None or not all(isinstance(one, Tensor) for one in result):
        unknown(net, node, args, kwargs, groups)
        return RUNTIME
    shapes = [tuple(one.shape) for one in result]
    labels = rule(groups, args, kwargs, shapes)
    if labels is None:
        labels = tuple(unknown(net, node, args, kwargs, groups, len(shape)) for shape in shapes)
    return tuple(map(Value, shapes, labels))


def leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for item in result:
            yield from leaves(item)
    elif isinstance(result, dict):
        yield from leaves(list(result.values()))
    else:
        yield result


def labels_of(
    net: nn.Module, node: fx.Node, args: Any, kwargs: Any, shape: tuple[int, ...], groups: Groups
) -> Labels:
    """Return the labels of a node's result by the rule for the node; without a rule, freeze all its
    inputs.
    """
    if node.op == "placeholder":
        return (None,) * len(shape)
    groups.place, out = describe_node(net, node), None
    if node.op == "call_module":
        layer = net.get_submodule(str(node.target))
        rule, given = layer_rule(layer), values(args, kwargs)
        out = rule(groups, layer, given[0], shape) if rule and len(given) == 1 else None
    elif operation := operation_rule(name_of(node)):
        args = (kwargs["input"], *args) if "input" in kwargs else args
        out = (
            operation(groups, args, kwargs, shape)
            if values(args[:1]) or operation is elementwise
            else None
        )
    if out is None:
        return unknown(net, node, args, kwargs, groups, len(shape))
    return out


def unknown(
    net: nn.Module, node: fx.Node, args: Any, kwargs: Any, groups: Groups, axes: int = 0
) -> Labels:
    """Freeze all inputs of an operation without a rule, and the tensors of its layer."""
    groups.place = describe_node(net, node)
    groups.freeze(label for x in values(args, kwargs) for label in x.labels)
    release(groups, *leaves((args, kwargs)))
    if node.op == "call_module":
        layer = net.get_submodule(str(node.target))
        if tensors := list(layer.parameters()):
            groups.obstacles.append(groups.place)
        for tensor in tensors:
            groups.claim(tensor, ())
    return (None,) * axes


def name_of(node: fx.Node) -> str:
    """Return the name of a function or method of PyTorch or of Python's operators, or "" for any
    other.
    """
    if isinstance(node.target, str):
        return node.target
    module = getattr(node.target, "__module__", None) or "torch"
    return (
        getattr(node.target, "__name__", "")
        if module.split(".")[0] in {"_operator", "math", "torch", "torchvision"}
        else ""
    )


def describe_node(net: nn.Module, node: fx.Node) -> str:
    if node.op == "call_module":
        return f"{type(net.get_submodule(str(node.target))).__name__} '{node.target}'"
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    return f"the operation '{name}'"


def named_tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters(remove_duplicate=False)
    yield from net.named_buffers(remove_duplicate=False)
