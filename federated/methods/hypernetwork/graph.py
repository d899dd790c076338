"""A submodel as a graph of operations, read off what autograd records of one example on the meta
device, so no family needs a rule of its own.

Knyazev et al., Parameter Prediction for Unseen Deep Architectures (arXiv 2110.13100), section 3.1:
nodes are operations, edges the flow of data, and virtual edges join each node to those further up,
by the length of the shortest path. Activations and changes of shape are no nodes. A weight and a
bias belong to the node of the operation that they first enter.
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

from federated.training.objective import answers
from models.families.catalogue import build, example, labelled, normalising, shapes
from models.submodel import Submodel

__all__ = ["FAR", "OPERATIONS", "Graph", "Role", "Slot", "factor", "graph"]

FAR = 50  # longest path that a virtual edge stands for

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
"""How autograd's names of operations begin, and what we call them."""

# nodes only where two flows, or a flow and a tensor of the network's, come together
JOINING = {"sum", "cse"}
OPERATIONS = ("input", "other", "pos_enc", "sep_conv", *sorted({*RECORDS.values()}))
# their tensors of several axes are weights
MULTIPLYING = {"conv", "embedding", "linear", "other", "sep_conv"}

Role = Literal["weight", "scale", "bias"]


@dataclass(frozen=True)
class Slot:
    """One tensor that is to be made.

    node: its index. key: which decoder makes it, by operation, role and axes. factor: of a weight,
    see `factor`.
    head: it has a row per class, so it depends on the classes of the device.
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
    """operations: of each node, inputs before what they enter, as indices of `OPERATIONS`. sizes:
    [nodes, 4], the axes of each node's largest tensor.

    paths: [nodes, nodes], the shortest path to v from u at [v, u]; 0 where there is none, or a
    longer one than `FAR`.
    slots: every tensor of the submodel, as its shapes are ordered.
    """

    operations: Tensor
    sizes: Tensor
    paths: Tensor
    slots: tuple[Slot, ...]


@dataclass
class Flow:
    """What is found on the way from the inputs: operations and inputs of each node, and which node
    a tensor belongs to.
    """

    operations: list[str] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    owner: dict[str, int] = field(default_factory=dict)

    def add(self, operation: str, inputs: Sequence[int] = (), tensors: Sequence[str] = ()) -> int:
        self.operations.append(operation)
        self.inputs.append(list(inputs))
        for name in tensors:
            # a tensor that is used twice belongs where it is used first
            self.owner.setdefault(name, len(self.operations) - 1)
        return len(self.operations) - 1


@lru_cache(maxsize=256)
def graph(submodel: Submodel) -> Graph:
    """The graph of a submodel in training. Whatever its forward pass raises on the meta device,
    this raises.
    """
    if submodel.owner:
        return graph(submodel.unowned)
    flow = read(build(submodel, "meta").train(), submodel)
    known = shapes(submodel)
    # in no operation: it is never trained, and sent all the same
    for name in known.keys() - flow.owner.keys():
        flow.add("other", tensors=[name])
    slots = tuple(slot(name, flow, submodel) for name in known)
    sizes = torch.zeros(len(flow.operations), 4, dtype=torch.long)
    for one in sorted(slots, key=lambda s: math.prod(s.shape)):  # the largest last: it stays
        sizes[one.node] = torch.tensor([*one.shape, 0, 0, 0, 0][:4])
    indices = torch.tensor([OPERATIONS.index(name) for name in flow.operations])
    return Graph(indices, sizes, paths(flow.inputs), slots)


def slot(name: str, flow: Flow, submodel: Submodel) -> Slot:
    known = shapes(submodel)
    shape, node = known[name], flow.owner[name]
    operation, bias = flow.operations[node], name.endswith("bias")
    role: Role = "bias"
    if name in normalising(submodel):
        role = "bias" if bias else "scale"
    elif operation in MULTIPLYING and len(shape) > 1 and not bias:
        role = "weight"
    # of attention, say, three axes are outputs
    outputs = len(known.get(name.removesuffix("weight") + "bias", shape[:1]))
    scale = factor(shape, outputs) if role == "weight" else 1.0
    return Slot(
        name,
        node,
        role,
        f"{operation}_{role}_{len(shape)}",
        shape,
        scale,
        name in labelled(submodel),
    )


def factor(shape: Sequence[int], outputs: int = 1) -> float:
    """sqrt(2 / fan-in), with 1 for 2 of depthwise and 1 x k convolutions, which no activation
    follows. outputs: leading axes that are outputs.
    """
    alone = (
        len(shape) > 2
        and outputs == 1
        and (shape[1] == 1 or (len(shape) > 3 and shape[2] < shape[3]))
    )
    return math.sqrt((1 if alone else 2) / math.prod(shape[outputs:]))


def read(net: nn.Module, submodel: Submodel) -> Flow:
    """Follows autograd's record from the inputs to every exit."""
    x = example(submodel.network, 2, "meta")
    if x.is_floating_point():
        x.requires_grad_()
    outs = answers(net, submodel, x)
    names = {id(p): name for name, p in net.named_parameters()}
    # per record: the nodes that reach it, and tensors that no node has taken yet
    flow, known = Flow(), dict[Any, tuple[list[int], list[str]]]()
    for record in ordered([out.grad_fn for out in outs]):
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
    """What a record is as a node, with so many flows and tensors of the network's coming in.

    "" where it is none, but passes on what comes: activations, changes of shape, and what is done
    to tensors alone.
    """
    operation = next((known for begin, known in RECORDS.items() if record.startswith(begin)), "")
    if operation == "embedding":  # its input is no flow that autograd sees
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


def ordered(ends: Sequence[Any]) -> Iterator[Any]:
    """Autograd's records, each after all that it came from."""
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


def paths(inputs: Sequence[Sequence[int]]) -> Tensor:
    """Lengths of the shortest paths up to `FAR`, [nodes, nodes]: to v from u at [v, u]; 0: none."""
    count = len(inputs)
    found = torch.full((count, count), FAR + 1, dtype=torch.long)
    for v, direct in enumerate(inputs):
        for u in direct:
            found[v] = torch.minimum(found[v], found[u] + 1)
            found[v, u] = 1
    return found.masked_fill(found > FAR, 0)
