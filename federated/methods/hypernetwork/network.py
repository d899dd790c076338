"""The graph hypernetwork: from the graph of a submodel, its last weights and a device's classes to
the submodel's weights.

RecipFL (Zhang et al., How Few Davids Improve One Goliath; the authors' code), after GHN-2 (Knyazev
et al., arXiv 2110.13100): a node starts as the sum of what embeds its operation, the four axes of
its tensor and its present weights; a gated graph network (Li et al., arXiv 1511.05493) passes once
forward and once backward through the graph; decoders make the tensors. The hidden size is h below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.methods.hypernetwork.decoder import Decoder, capped, largest, normalised, tile
from federated.methods.hypernetwork.graph import OPERATIONS, Graph, Slot, graph
from models.submodel import Submodel

__all__ = ["Hypernetwork", "Layout", "generate", "head_key", "layout", "layout_of", "shares"]

# of axes, up to 16384; others count as the nearest
SIZES = torch.tensor(sorted({0, *(round(2 ** (k / 4)) for k in range(57))}))
AXES = 4
TOKENS = 128  # numbers that a tensor is pooled to before it is encoded
HEADS = 4

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Layout = tuple[int, int, Shapes, Shapes]
"""h, the number of classes, and what the decoders and the heads make, by key."""


class Encoder(nn.Module):
    """Present weights of the nodes, pooled, [nodes, TOKENS] -> [nodes, h]: one transformer layer
    over the numbers of each, and their mean.
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
    """One pass forward and one backward through a graph, [nodes, h] -> [nodes, h].

    A node takes in the messages of its inputs, and of nodes further up divided by the length of the
    path.
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
            direct, virtual = (
                (lengths == 1).to(x.dtype),
                torch.where(lengths > 1, 1 / lengths.clamp(min=1), 0.0),
            )
            near, far = list[Tensor](), list[Tensor]()  # the messages of the nodes so far
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
    """See the module."""

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
        """Every tensor of a graph's submodel, by name.

        pooled: [nodes, TOKENS], present weights; known: [nodes], where there are some. classes: the
        device's share of examples by class.
        """
        places = (what.sizes[..., None] - SIZES).abs().argmin(-1)  # [nodes, AXES]
        x = self.operation(what.operations) + torch.cat(
            [embed(places[:, axis]) for axis, embed in enumerate(self.axes)], -1
        )
        if bool(known.any()):
            x = x + torch.zeros_like(x).index_put((known,), self.encoder(pooled[known], dropout))
        x = self.norm(self.sweep(x, what.paths))
        push, made = self.client(classes), dict[str, Tensor]()
        for (head, key), several in grouped(what.slots).items():
            decoder = (self.heads if head else self.decoders)[key]
            values = decoder(x[[slot.node for slot in several]], push if head else None)
            made |= {
                slot.name: normalised(tile(value, slot.shape), slot.role, slot.factor)
                for slot, value in zip(several, values, strict=True)
            }
        return {slot.name: made[slot.name] for slot in what.slots}


def grouped(slots: Sequence[Slot]) -> dict[tuple[bool, str], list[Slot]]:
    """Slots by what makes them: all of one decoder are made at once."""
    found = defaultdict[tuple[bool, str], list[Slot]](list)
    for slot in slots:
        found[slot.head, head_key(slot) if slot.head else slot.key].append(slot)
    return found


def head_key(slot: Slot) -> str:
    """A decoder for each classifier of each size, whose shape is exact: `linear-weight-10x64`."""
    return slot.name.replace(".", "-") + "-" + "x".join(map(str, slot.shape))


def layout(submodels: Sequence[Submodel], hidden: int, cap: int) -> Layout:
    """A hypernetwork for all of these. cap: the most numbers that a decoder makes; larger tensors
    repeat them.
    """
    slots = [slot for submodel in submodels for slot in graph(submodel).slots]
    shapes = defaultdict[str, list[tuple[int, ...]]](list)
    for slot in slots:
        if not slot.head:
            shapes[slot.key].append(slot.shape)
    decoders = tuple(
        (key, capped(largest(several), cap)) for key, several in sorted(shapes.items())
    )
    heads = {head_key(slot): slot.shape for slot in slots if slot.head}
    return hidden, submodels[0].network.outputs, decoders, tuple(sorted(heads.items()))


def layout_of(phi: Mapping[str, Tensor]) -> Layout:
    """The layout of a hypernetwork with these tensors: their shapes say it."""
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
def empty(form: Layout) -> Hypernetwork:
    """The module without tensors of its own, which `generate` lends it."""
    with torch.device("meta"):
        return Hypernetwork(form)


def generate(
    phi: Mapping[str, Tensor],
    submodel: Submodel,
    present: Mapping[str, Tensor],
    classes: Tensor,
    dropout: float = 0.0,
) -> dict[str, Tensor]:
    """The submodel's tensors by name, differentiable in phi, the hypernetwork's.

    present: its present weights by name, as far as they are known. dropout: of their encoding,
    drawn from torch's global generator.
    """
    what = graph(submodel)
    pooled, known = (
        torch.zeros(len(what.operations), TOKENS),
        torch.zeros(len(what.operations), dtype=torch.bool),
    )
    for slot in what.slots:
        if slot.role == "weight" and slot.name in present:
            pooled[slot.node] = F.adaptive_avg_pool1d(
                present[slot.name].detach().reshape(1, -1), TOKENS
            )[0]
            known[slot.node] = True
    found: dict[str, Tensor] = functional_call(
        empty(layout_of(phi)), dict(phi), (what, pooled, known, classes, dropout)
    )
    return found


def shares(told: object, classes: int) -> Tensor:
    """What a device told of its classes, [classes]; equal shares where it told nothing, or nothing
    sound.
    """
    sound = (
        isinstance(told, list | tuple)
        and len(told) == classes
        and all(isinstance(share, int | float) and 0 <= share <= 1 for share in told)
    )
    return torch.tensor(told if sound else [1 / classes] * classes, dtype=torch.float32)
