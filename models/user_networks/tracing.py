"""Trace a network's forward pass with torch.fx and one example on the meta device, and label the
axes of every tensor in it with the channels that they hold (`models.user_networks.channel_groups`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, hub, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import Attribute

from models.extension_lookup import is_library
from models.user_networks.channel_groups import Groups, Labels
from models.user_networks.functional_layer_rules import elementwise
from models.user_networks.layer_rules import SEVERAL_LAYERS, layer_rule
from models.user_networks.operation_rules import SEVERAL, operation_rule
from models.user_networks.operation_values import (
    RUNTIME,
    Field,
    Value,
    read_size,
    release,
    values,
)

__all__ = ["Call", "label_tensors", "named_tensors", "trace"]

RESHAPE = "instead of a number write -1 or a size of x.shape, or use flatten(1)"
LINE = "line"  # in the `meta` of a node: where the user's code called the operation

Call = tuple[fx.Node, fx.Node] | None
"""Input and output of a module's call; None unless each is one tensor."""


class Tracer(fx.Tracer):
    """Trace the forward pass and record each module's inputs and outputs.

    It is a subclass, because torch.fx is extended by subclassing.
    """

    def __init__(self, net: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.net, self.example = net, example
        self.calls: dict[str, list[Call]] = {}
        self.values: dict[fx.Node, Any] = {}
        self.evaluating = False

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Trace with one input: other parameters of the forward pass keep their defaults."""
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        for index, parameter in enumerate(inspect.signature(self.net.forward).parameters.values()):
            if index and parameter.default is not parameter.empty:
                self.graph.erase_node(args[1 + index].node)
                args[1 + index] = parameter.default
        return function, args

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            super().is_leaf_module(m, module_qualified_name)
            or type(m).__module__ == "models.layers.basic"
        )

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.evaluating:
            return forward(*args, **kwargs)
        out = super().call_module(m, forward, args, kwargs)
        more = [x for x in leaves((args[1:], kwargs)) if isinstance(x, fx.Proxy)]
        one = bool(args) and all(isinstance(x, fx.Proxy) for x in (args[0], out)) and not more
        self.calls.setdefault(self.path_of_module(m), []).append(
            (args[0].node, out.node) if one else None
        )
        return out

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self.evaluating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Decide a branch on sizes as the example does: a network's inputs have one shape."""
        value = self.evaluate(obj.node)
        return super().to_bool(obj) if isinstance(value, Tensor) else bool(value)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        node.meta[LINE] = find_line()
        return SizedProxy(node, self)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Iterate over a shape, or over the first axis of a tensor, as long as in the example."""
        return iter([getitem(obj, i) for i in range(len(self.evaluate(obj.node)))])

    def evaluate(self, wanted: fx.Node) -> Any:
        """Return the value of a node for the example, computed with the part traced so far."""
        interpreter = fx.Interpreter(self.net, garbage_collect_values=False, graph=self.graph)
        interpreter.env = self.values
        self.evaluating = True
        try:
            with torch.no_grad():
                for node in self.graph.nodes:
                    if node.op == "placeholder":
                        self.values[node] = self.example
                    elif node not in self.values:
                        self.values[node] = interpreter.run_node(node)
        finally:
            self.evaluating = False
        return self.values[wanted]


class Sized(fx.Proxy):
    """A proxy whose `len()` and `int()` are those of its value for the example."""

    tracer: Tracer

    def __len__(self) -> int:
        return len(self.tracer.evaluate(self.node))

    def __int__(self) -> int:
        return int(self.tracer.evaluate(self.node))


class SizedAttribute(Sized, Attribute):
    """An attribute, such as a shape."""


class SizedProxy(Sized):
    """A value in the forward pass."""

    def __getattr__(self, name: str) -> SizedAttribute:
        return SizedAttribute(self, name)


def trace(net: nn.Module, example: Tensor) -> tuple[fx.Graph, dict[str, list[Call]]]:
    """Return the graph of a network, and the calls of each module by name."""
    tracer = Tracer(net, example)
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
                vars(module)[name] = mark(module, name, value)
            elif type(value) is tuple:
                vars(module)[name] = tuple(
                    mark(module, name, n, index) if type(n) is int and n > 1 else n
                    for index, n in enumerate(value)
                )


def mark(module: nn.Module, name: str, value: int, index: int | None = None) -> Field:
    marked = Field(value)
    marked.layer, marked.name, marked.index = module, name, index
    return marked


@contextmanager
def without_progress_thread() -> Iterator[None]:
    """Keep the interpreter's hidden progress bar from starting a thread: a process that has threads
    cannot be forked.
    """
    bar: Any = vars(hub)["tqdm"]
    before, bar.monitor_interval = getattr(bar, "monitor_interval", 0), 0
    try:
        yield
    finally:
        bar.monitor_interval = before


def find_line() -> str:
    """Return the file and line of the traced network that is being executed, as the end of a
    message; empty in the code of a library.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not trace.__code__:
        file = frame.f_code.co_filename
        if not is_library(file):
            return f" at {Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def label_tensors(
    net: nn.Module, graph: fx.Graph, example: Tensor, groups: Groups
) -> dict[fx.Node, Value]:
    """Return every tensor in the forward pass of an example, with its labels; `groups` collects the
    axes that scale together.
    """
    interpreter = fx.Interpreter(net, garbage_collect_values=False, graph=graph)
    with torch.no_grad(), without_progress_thread():
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
        elif find_name(node) == "getitem" and isinstance(args[0], tuple):
            found[node] = args[0][args[1]] if isinstance(args[1], int | slice) else RUNTIME
        elif isinstance(result, Tensor):
            found[node] = Value(
                tuple(result.shape),
                label_result(net, node, args, kwargs, tuple(result.shape), groups),
            )
        elif any(isinstance(leaf, Tensor) for leaf in leaves(result)):
            found[node] = label_results(net, node, args, kwargs, result, groups)
        else:
            found[node] = read_size(find_name(node) or str(node.target), args, result)
    return {node: value for node, value in found.items() if isinstance(value, Value)}


def label_results(
    net: nn.Module, node: fx.Node, args: Any, kwargs: Any, result: Any, groups: Groups
) -> Any:
    """Return the values of an operation with several results; without a rule, freeze its inputs."""
    groups.place = describe_node(net, node)
    shapes = [tuple(one.shape) for one in result if isinstance(one, Tensor)]
    labels: Sequence[Labels] | None = None
    if len([one for one in result if one is not None]) == len(shapes):
        if node.op == "call_module":
            layer = net.get_submodule(str(node.target))
            if rule := SEVERAL_LAYERS.get(type(layer)):
                labels = rule(groups, layer, values(args, kwargs), shapes)
        elif rule := SEVERAL.get(find_name(node)):
            labels = rule(groups, args, kwargs, shapes)
    if labels is None:
        labels = [freeze_inputs(net, node, args, kwargs, groups, len(shape)) for shape in shapes]
    found = iter(map(Value, shapes, labels))
    return tuple(next(found) if isinstance(one, Tensor) else RUNTIME for one in result)


def leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for item in result:
            yield from leaves(item)
    elif isinstance(result, dict):
        yield from leaves(list(result.values()))
    else:
        yield result


def label_result(
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
    elif operation := operation_rule(find_name(node)):
        args = (kwargs["input"], *args) if "input" in kwargs else args
        out = (
            operation(groups, args, kwargs, shape)
            if values(args[:2]) or operation is elementwise
            else None
        )
    if out is None:
        return freeze_inputs(net, node, args, kwargs, groups, len(shape))
    return out


def freeze_inputs(
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


def find_name(node: fx.Node) -> str:
    """Return the name of a function or method of PyTorch or of Python's operators, or "" for any
    other.
    """
    if node.op == "call_module":
        return ""
    if isinstance(node.target, str):
        return node.target
    module = getattr(node.target, "__module__", None) or "torch"
    return (
        getattr(node.target, "__name__", "")
        if module.split(".")[0] in {"_operator", "builtins", "math", "torch", "torchvision"}
        else ""
    )


def describe_node(net: nn.Module, node: fx.Node) -> str:
    if node.op == "call_module":
        return f"{type(net.get_submodule(str(node.target))).__name__} '{node.target}'"
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    line = node.meta.get(LINE, "")  # no remedy for the code of a library
    hint = f" ({RESHAPE})" if line and name in {"view", "reshape"} else ""
    return f"the operation '{name}'{line}{hint}"


def named_tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters(remove_duplicate=False)
    yield from net.named_buffers(remove_duplicate=False)
