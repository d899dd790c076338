"""Read a network's graph of operations from what autograd records of one example on the meta
device, so that no family needs its own rule.

Knyazev et al., Parameter Prediction for Unseen Deep Architectures (arXiv 2110.13100), section 3.1:
nodes are operations, edges are the flow of data, and virtual edges connect each node to those
further up, with the length of the shortest path. Activations and changes of shape are not nodes. A
weight and a bias belong to the node of the operation that they enter first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.layers.early_exits import run_exits
from models.submodel import Submodel
from models.submodel_building import find_labelled, list_normalising, rehearsal, shapes

__all__ = ["FAR", "OPERATIONS", "Graph", "Role", "Slot", "read_graph", "scale_factor"]

FAR = 50  # longest path of a virtual edge

RECORDS: Mapping[str, str] = {
    "Convolution": "conv",
    "NativeBatchNorm": "bn",
    "NativeLayerNorm": "ln",
    "NativeGroupNorm": "ln",
    "Addmm": "linear",
    "Mm": "linear",
    "Linear": "linear",
    "Embedding": "embedding",
    "Bmm": "msa",
    "ScaledDotProduct": "msa",
    "MaxPool": "max_pool",
    "AvgPool": "avg_pool",
    "AdaptiveAvgPool": "avg_pool",
    "Mean": "glob_avg",
    "Cat": "concat",
    "Stack": "concat",
    "Add": "sum",
    "Mul": "cse",
}
"""Operations by the beginning of autograd's name for them."""

# nodes only if two flows, or a flow and a tensor of the network, meet
JOINING = {"sum", "cse"}
OPERATIONS = ("input", "other", "pos_enc", "sep_conv", *sorted({*RECORDS.values()}))
MULTIPLYING = {"conv", "embedding", "linear", "other", "sep_conv"}  # their matrices are weights

Role = Literal["weight", "scale", "bias"]


@dataclass(frozen=True)
class Slot:
    """One tensor that the hypernetwork makes.

    name: of the tensor
    node: index of its node
    role: its kind, which decides its scale
    key: name of its decoder, made of operation, role and number of axes
    shape: of the tensor
    factor: of a weight, see `scale_factor`
    head: True if it has a row per class, so it depends on the classes of the device
    """

    name: str
    node: int
    role: Role
    key: str
    shape: tuple[int, ...]
    factor: float
    head: bool


@dataclass(frozen=True)
class Graph:
    """Graph of a submodel.

    operations: [nodes], indices of `OPERATIONS`; inputs come before the nodes that they enter
    sizes: [nodes, 4], the axes of each node's largest tensor
    paths: [nodes, nodes], the shortest path to v from u at [v, u]; 0 if none or longer than `FAR`
    slots: every tensor of the submodel, in the order of its shapes
    """

    operations: Tensor
    sizes: Tensor
    paths: Tensor
    slots: tuple[Slot, ...]


@dataclass
class Flow:
    """Nodes found on the way from the inputs.

    operations: of each node
    inputs: nodes that enter each node
    owner: node of each tensor
    """

    operations: list[str] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    owner: dict[str, int] = field(default_factory=dict)

    def add(self, operation: str, inputs: Sequence[int] = (), tensors: Sequence[str] = ()) -> int:
        """Add a node, and return its index."""
        self.operations.append(operation)
        self.inputs.append(list(inputs))
        for name in tensors:
            self.owner.setdefault(name, len(self.operations) - 1)  # the first use owns it
        return len(self.operations) - 1


@lru_cache(maxsize=256)
def read_graph(submodel: Submodel) -> Graph:
    """Return the graph of a submodel in training. Raise whatever its forward pass raises."""
    if submodel.owner:
        return read_graph(submodel.unowned)
    net, x = rehearsal(submodel, 2)
    flow = trace(net.train(), submodel, x)
    known = shapes(submodel)
    # tensors of no operation are never trained, but still sent
    for name in known.keys() - flow.owner.keys():
        flow.add("other", tensors=[name])
    slots = tuple(make_slot(name, flow, submodel) for name in known)
    sizes = torch.zeros(len(flow.operations), 4, dtype=torch.long)
    for one in sorted(slots, key=lambda s: math.prod(s.shape)):  # the largest overwrites
        sizes[one.node] = torch.tensor([*one.shape, 0, 0, 0, 0][:4])
    indices = torch.tensor([OPERATIONS.index(name) for name in flow.operations])
    return Graph(indices, sizes, shortest_paths(flow.inputs), slots)


def make_slot(name: str, flow: Flow, submodel: Submodel) -> Slot:
    """Return the slot of one tensor."""
    known = shapes(submodel)
    shape, node = known[name], flow.owner[name]
    operation, bias = flow.operations[node], name.endswith("bias")
    role: Role = "bias"
    if name in list_normalising(submodel):
        role = "bias" if bias else "scale"
    elif operation in MULTIPLYING and len(shape) > 1 and not bias:
        role = "weight"
    # attention has three output axes
    outputs = len(known.get(name.removesuffix("weight") + "bias", shape[:1]))
    scale = scale_factor(shape, outputs) if role == "weight" else 1.0
    return Slot(
        name,
        node,
        role,
        f"{operation}_{role}_{len(shape)}",
        shape,
        scale,
        name in find_labelled(submodel),
    )


def scale_factor(shape: Sequence[int], outputs: int = 1) -> float:
    """Return sqrt(2 / fan-in), or sqrt(1 / fan-in) for depthwise and 1 x k convolutions, which no
    activation follows.

    outputs: number of leading axes that are outputs
    """
    alone = (
        len(shape) > 2
        and outputs == 1
        and (shape[1] == 1 or (len(shape) > 3 and shape[2] < shape[3]))
    )
    return math.sqrt((1 if alone else 2) / math.prod(shape[outputs:]))


def trace(net: nn.Module, submodel: Submodel, x: Tensor) -> Flow:
    """Follow autograd's records from the inputs to every exit."""
    if x.is_floating_point():
        x.requires_grad_()
    for module in net.modules():
        if isinstance(module, nn.Embedding) and not list(module.parameters()):  # frozen
            module.register_forward_hook(lambda module, args, out: out.requires_grad_())
    outs = run_exits(net, submodel, x)
    names = {id(p): name for name, p in net.named_parameters()}
    # per record: the nodes that reach it, and the tensors that no node owns yet
    flow, known = Flow(), dict[Any, tuple[list[int], list[str]]]()
    for record in sort_records([out.grad_fn for out in outs]):
        leaf = getattr(record, "variable", None)
        if leaf is not None:
            known[record] = (
                ([], [names[id(leaf)]]) if id(leaf) in names else ([flow.add("input")], [])
            )
            continue
        before = [known[other] for other, _ in record.next_functions if other is not None]
        nodes = list(dict.fromkeys(itertools.chain.from_iterable(nodes for nodes, _ in before)))
        tensors = [name for _, several in before for name in several]
        operation = operation_of(
            record.name(), len(nodes), len(tensors), groups=getattr(record, "_saved_groups", 1)
        )
        known[record] = (
            ([flow.add(operation, nodes, tensors)], []) if operation else (nodes, tensors)
        )
    return flow


def operation_of(record: str, nodes: int, tensors: int, *, groups: int = 1) -> str:
    """Return the operation of a record as a node, given the number of flows and tensors that enter
    it.

    Return "" for records that are not nodes: activations, changes of shape, and operations on
    tensors alone.
    """
    operation = next((known for begin, known in RECORDS.items() if record.startswith(begin)), "")
    if operation == "embedding":  # autograd does not record its input
        return operation
    if not nodes or (operation in JOINING and nodes + tensors < 2):
        return ""
    if operation == "conv" and groups > 1:
        return "sep_conv"
    if operation == "sum" and tensors and nodes == 1:
        return "pos_enc"
    if operation in {"linear", "msa"}:
        return "linear" if tensors else "msa"
    return operation or ("other" if tensors else "")


def sort_records(ends: Sequence[Any]) -> Iterator[Any]:
    """Yield autograd's records, each after all that it depends on."""
    done, stack = set[Any](), [(end, False) for end in reversed(ends)]
    while stack:
        record, ready = stack.pop()
        if record is None or record in done:
            continue
        if ready:
            done.add(record)
            yield record
        else:
            stack.append((record, True))
            stack.extend((other, False) for other, _ in reversed(record.next_functions))


def shortest_paths(inputs: Sequence[Sequence[int]]) -> Tensor:
    """Return the lengths of shortest paths up to `FAR`, [nodes, nodes]: to v from u at [v, u]; 0:
    none.
    """
    count = len(inputs)
    found = torch.full((count, count), FAR + 1, dtype=torch.long)
    for v, direct in enumerate(inputs):
        for u in direct:
            found[v] = torch.minimum(found[v], found[u] + 1)
            found[v, u] = 1
    return found.masked_fill(found > FAR, 0)
