"""Generate the weights of a submodel with a graph hypernetwork, from the submodel's graph, its last
weights and a device's classes.

RecipFL (Zhang et al., How Few Davids Improve One Goliath; the authors' code), after GHN-2 (Knyazev
et al., arXiv 2110.13100): a node starts as the sum of the embeddings of its operation, the four
axes of its tensor and its present weights. A gated graph network (Li et al., arXiv 1511.05493)
passes once forward and once backward through the graph, and decoders make the tensors. The hidden
size is h below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.methods.hypernetwork.decoder import (
    Decoder,
    bounding_shape,
    cap_shape,
    normalise,
    tile,
)
from federated.methods.hypernetwork.operation_graph import OPERATIONS, Graph, Slot, read_graph
from models.submodel import Submodel

__all__ = ["Hypernetwork", "generate", "make_layout", "read_class_shares", "read_layout"]

# lengths of axes with an embedding, up to 16384; others use the nearest
SIZES = torch.tensor(sorted({0, *(round(2 ** (k / 4)) for k in range(57))}))
AXES = 4
TOKENS = 128  # length to which a tensor is pooled before it is encoded
HEADS = 4

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Layout = tuple[int, int, Shapes, Shapes]
"""h, the number of classes, and the shapes of the decoders and of the heads, by key."""


class Encoder(nn.Module):
    """One transformer layer over the pooled present weights of each node, and its mean, from
    [nodes, TOKENS] to [nodes, h].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Linear(1, hidden)
        self.project, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.feed = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )

    def forward(self, values: Tensor, dropout: float) -> Tensor:
        # [nodes, TOKENS, h]
        x = F.dropout(self.embed(values[..., None]), dropout, training=dropout > 0)
        # each [nodes, HEADS, TOKENS, h / HEADS]
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.norm1(x + F.dropout(self.out(seen), dropout, training=dropout > 0))
        return self.norm2(x + F.dropout(self.feed(x), dropout, training=dropout > 0)).mean(1)  # type: ignore[no-any-return]


class Sweep(nn.Module):
    """One pass forward and one backward through a graph, from [nodes, h] to [nodes, h].

    A node receives the messages of its inputs, and those of nodes further up divided by the length
    of the path.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.near, self.far = (
            nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, hidden))
            for _ in range(2)
        )
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self, x: Tensor, paths: Tensor) -> Tensor:
        states, nodes = list(x), list(range(len(x)))
        for lengths, order in ((paths, nodes), (paths.T, nodes[::-1])):
            direct = (lengths == 1).to(x.dtype)
            virtual = torch.where(lengths > 1, 1 / lengths.clamp(min=1), 0.0)
            near, far = list[Tensor](), list[Tensor]()  # messages of the nodes so far
            for place, node in enumerate(order):
                before, taken = order[:place], torch.zeros_like(states[node])
                if before:
                    taken = direct[node, before] @ torch.stack(near) + virtual[
                        node, before
                    ] @ torch.stack(far)
                states[node] = self.cell(taken, states[node])
                near.append(self.near(states[node]))
                far.append(self.far(states[node]))
        return torch.stack(states)


class Hypernetwork(nn.Module):
    """Embeddings, sweep and decoders; see the module."""

    def __init__(self, form: Layout) -> None:
        super().__init__()
        hidden, classes, decoders, heads = form
        self.operation = nn.Embedding(len(OPERATIONS), hidden)
        self.axes = nn.ModuleList(nn.Embedding(len(SIZES), hidden // AXES) for _ in range(AXES))
        self.encoder, self.sweep, self.norm = Encoder(hidden), Sweep(hidden), nn.LayerNorm(hidden)
        self.client = nn.Sequential(
            nn.Linear(classes, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, 2 * hidden)
        )
        self.decoders = nn.ModuleDict(
            {key: Decoder(hidden, 2 * hidden, shape) for key, shape in decoders}
        )
        self.heads = nn.ModuleDict(
            {key: Decoder(hidden, 2 * hidden, shape) for key, shape in heads}
        )

    def forward(
        self, what: Graph, pooled: Tensor, known: Tensor, classes: Tensor, dropout: float
    ) -> dict[str, Tensor]:
        """Return every tensor of a graph's submodel, by name.

        pooled: [nodes, TOKENS], present weights
        known: [nodes], True for nodes with present weights
        classes: [classes], the device's fraction of examples by class
        """
        places = (what.sizes[..., None] - SIZES).abs().argmin(-1)  # [nodes, AXES]
        x = self.operation(what.operations) + torch.cat(
            [embed(places[:, axis]) for axis, embed in enumerate(self.axes)], -1
        )
        if bool(known.any()):
            x = x + torch.zeros_like(x).index_put((known,), self.encoder(pooled[known], dropout))
        x = self.norm(self.sweep(x, what.paths))
        push, made = self.client(classes), dict[str, Tensor]()
        for (head, key), several in group_slots(what.slots).items():
            decoder = (self.heads if head else self.decoders)[key]
            values = decoder(x[[slot.node for slot in several]], push if head else None)
            made |= {
                slot.name: normalise(tile(value, slot.shape), slot.role, slot.factor)
                for slot, value in zip(several, values, strict=True)
            }
        return {slot.name: made[slot.name] for slot in what.slots}


def group_slots(slots: Sequence[Slot]) -> dict[tuple[bool, str], list[Slot]]:
    """Return slots by decoder and head, so that each makes all of its tensors at once."""
    found = defaultdict[tuple[bool, str], list[Slot]](list)
    for slot in slots:
        found[slot.head, head_key(slot) if slot.head else slot.key].append(slot)
    return found


def head_key(slot: Slot) -> str:
    """Return the key of a classifier's decoder, one per exact shape: `linear-weight-10x64`."""
    return slot.name.replace(".", "-") + "-" + "x".join(map(str, slot.shape))


def make_layout(submodels: Sequence[Submodel], hidden: int, cap: int) -> Layout:
    """Return the layout of a hypernetwork for these submodels.

    cap: most numbers that a decoder makes; larger tensors repeat them
    """
    slots = [slot for submodel in submodels for slot in read_graph(submodel).slots]
    shapes = defaultdict[str, list[tuple[int, ...]]](list)
    for slot in slots:
        if not slot.head:
            shapes[slot.key].append(slot.shape)
    decoders = tuple(
        (key, cap_shape(bounding_shape(several), cap)) for key, several in sorted(shapes.items())
    )
    heads = {head_key(slot): slot.shape for slot in slots if slot.head}
    return hidden, submodels[0].network.outputs, decoders, tuple(sorted(heads.items()))


def read_layout(phi: Mapping[str, Tensor]) -> Layout:
    """Return the layout of a hypernetwork from the shapes of its tensors."""
    made: dict[str, dict[str, tuple[int, ...]]] = {"decoders": {}, "heads": {}}
    for name, value in phi.items():
        kind, _, rest = name.partition(".")
        if kind in made and rest.count(".") == 1 and rest.endswith(".bias"):
            made[kind][rest.removesuffix(".bias")] = tuple(value.shape)
    hidden, classes = phi["operation.weight"].shape[1], phi["client.0.weight"].shape[1]
    return (
        hidden,
        classes,
        tuple(sorted(made["decoders"].items())),
        tuple(sorted(made["heads"].items())),
    )


@lru_cache(maxsize=16)
def make_empty(form: Layout) -> Hypernetwork:
    """Return the module on the meta device, for use with the tensors of `generate`."""
    with torch.device("meta"):
        return Hypernetwork(form)


def generate(
    phi: Mapping[str, Tensor],
    submodel: Submodel,
    present: Mapping[str, Tensor],
    classes: Tensor,
    dropout: float = 0.0,
) -> dict[str, Tensor]:
    """Return the submodel's tensors by name, differentiable in phi, the tensors of the
    hypernetwork.

    present: present weights of the submodel by name, as far as they are known
    dropout: of their encoding, drawn from torch's global generator
    """
    what = read_graph(submodel)
    pooled = torch.zeros(len(what.operations), TOKENS)
    known = torch.zeros(len(what.operations), dtype=torch.bool)
    for slot in what.slots:
        if slot.role == "weight" and slot.name in present:
            pooled[slot.node] = F.adaptive_avg_pool1d(
                present[slot.name].detach().reshape(1, -1), TOKENS
            )[0]
            known[slot.node] = True
    found: dict[str, Tensor] = functional_call(
        make_empty(read_layout(phi)), dict(phi), (what, pooled, known, classes, dropout)
    )
    return found


def read_class_shares(told: object, classes: int) -> Tensor:
    """Return a device's fractions per class, [classes]; equal ones if it sent none, or invalid
    ones.
    """
    sound = (
        isinstance(told, list | tuple)
        and len(told) == classes
        and all(isinstance(share, int | float) and 0 <= share <= 1 for share in told)
    )
    return torch.tensor(told if sound else [1 / classes] * classes, dtype=torch.float32)
