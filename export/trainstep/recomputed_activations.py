"""Compute cheap operations of the forward pass again for the gradients, instead of keeping results.

A batch norm keeps its input less the mean for its gradient. What it returns, and the activation
after that, follow from this tensor in a few passes over memory, but the gradients of the activation
and of the next layer would keep them as well. Copies of these operations, next to the gradients,
keep neither.

ONNX Runtime merges operations that are the same. So copied sums and products have their operands in
another order, which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

__all__ = ["recompute_activations"]

aten = torch.ops.aten
SAME = (aten.alias.default, aten.detach.default)
SWAPPED = (aten.add.Tensor, aten.mul.Tensor)
CHEAP = {
    *SWAPPED,
    aten.clamp.default,
    aten.hardtanh.default,
    aten.relu.default,
    aten.sigmoid.default,
    aten.silu.default,
    aten.view.default,
}
LEAST = 2**14  # numbers of a tensor; smaller ones are kept
SMALL = 1 / 8  # most numbers of another operand, such as one per channel, as a share of a tensor's


def recompute_activations(traced: GraphModule, loss: int) -> None:
    """Change a traced training step, in which no operation changes a tensor in place.

    loss: its index among the results; all operations after it compute gradients
    """
    remove_aliases(traced)
    nodes = list(traced.graph.nodes)
    results: Any = nodes[-1].args[0]
    place = {node: i for i, node in enumerate(nodes)}
    end = place[results[loss]]
    kept = {node for node in nodes[:end] if any(place[user] > end for user in node.users)}
    sources = find_sources(nodes[:end])
    copies = dict[Node, Node]()
    for user in nodes[end + 1 : -1]:
        for node in user.all_input_nodes:
            if node in sources and node in kept and find_start(node, sources) in kept:
                user.replace_input_with(node, repeat(node, user, sources, copies))
    traced.recompile()


def remove_aliases(traced: GraphModule) -> None:
    """Replace each tensor that autograd detached, and every other alias, by the original."""
    for node in list(traced.graph.nodes):
        if node.target in SAME:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)


def find_sources(nodes: list[Node]) -> Mapping[Node, Node]:
    """Return the operations that are cheap to repeat, with their only large operand."""
    found = dict[Node, Node]()
    for node in nodes:
        large = [one for one in node.all_input_nodes if count(one) > SMALL * count(node)]
        if node.target in CHEAP and len(large) == 1 and count(large[0]) == count(node) >= LEAST:
            found[node] = large[0]
    return found


def count(node: Node) -> int:
    """Return the numbers of a tensor; 0 for other values."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


def find_start(node: Node, sources: Mapping[Node, Node]) -> Node:
    """Return the tensor from which cheap operations alone lead to this one."""
    while node in sources:
        node = sources[node]
    return node


def repeat(node: Node, user: Node, sources: Mapping[Node, Node], copies: dict[Node, Node]) -> Node:
    """Return a copy of a chain of cheap operations, before the node that uses it first."""
    if node not in sources:
        return node
    if node not in copies:
        source = sources[node]
        inner = repeat(source, user, sources, copies)
        args = map_arg(node.args, lambda one: inner if one is source else one)
        if node.target in SWAPPED and not node.kwargs and isinstance(args[1], Node):
            args = args[::-1]
        with node.graph.inserting_before(user):
            copies[node] = node.graph.create_node("call_function", node.target, args, node.kwargs)
        copies[node].meta = dict(node.meta)
    return copies[node]
