"""The transformer language model of HeteroFL.

Diao et al., HeteroFL (arXiv 2010.01264), section 4, as in its public code: a learned embedding of
tokens and positions, post-norm encoder layers, and a decoder of two linear layers. Width scales the
features of a token, those inside each head and the hidden ones; heads, positions and the vocabulary
stay. Layers are one section.

The "masked" objective predicts hidden tokens; a hidden token has the id `vocabulary`, and training
chooses which to hide. The causal presets see only earlier tokens, and predict the token after each
position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, TypicalData, check_mask
from models.layers.attention import Attention, FeedForward
from models.layers.basic import Linear
from models.submodel import Objective, Submodel, Target, scale_count

__all__ = ["TRANSFORMER"]


@dataclass(frozen=True)
class Size:
    """One size of the network.

    dim: features of a token
    heads: attention heads
    hidden: hidden features of the feed-forward in a layer
    layers: number of layers
    causal: each position attends only to itself and earlier ones
    dropout: dropout rate
    """

    dim: int
    heads: int
    hidden: int
    layers: int
    causal: bool = False
    dropout: float = 0.2

    @property
    def depths(self) -> tuple[int, ...]:
        return (self.layers,)


PRESETS: Mapping[str, Size] = {
    "heterofl": Size(256, 8, 512, 4),
    "causal": Size(256, 8, 512, 4, causal=True),
    "small": Size(64, 4, 128, 2),  # for a CPU
    "small-causal": Size(64, 4, 128, 2, causal=True),
}


def objective(preset: str, target: Target) -> Objective:
    """Return the objective of a preset. ValueError: the data are not tokens."""
    if target != "token":
        raise ValueError(
            f"it learns from tokens of text, but the data give a {target}; use a model for "
            "images, such as 'preresnet'"
        )
    return "next" if PRESETS[preset].causal else "masked"


def labelled_tensors(submodel: Submodel) -> frozenset[str]:
    return frozenset({"embedding.tokens", "decoder.linear2.weight", "decoder.linear2.bias"})


class Embedding(nn.Module):
    """Sum of a token's and its position's embedding, normalised; [N, T] of ids 0 .. vocabulary ->
    [N, T, D].
    """

    def __init__(self, vocabulary: int, length: int, dim: int, dropout: float) -> None:
        super().__init__()
        # the last row is the hidden token's
        self.tokens = nn.Parameter(torch.empty(vocabulary + 1, dim).normal_())
        self.positions = nn.Parameter(torch.empty(length, dim).normal_())
        self.scaler: nn.Module = nn.Identity()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.tokens) + self.positions
        return self.dropout(self.norm(self.scaler(x)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """norm(x + attention(x)), then the same with the feed-forward; [N, T, D] -> [N, T, D]."""

    def __init__(self, dim: int, features: int, hidden: int, size: Size, *, step: bool) -> None:
        super().__init__()
        self.attention = Attention(dim, size.heads, features, causal=size.causal, step=step)
        self.norm1 = nn.LayerNorm(dim)
        self.feed = FeedForward(dim, hidden, dropout=size.dropout, step=step)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(size.dropout)
        for linear in (self.feed.linear1, self.feed.linear2):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.feed(x)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """linear, GELU, norm, linear at each position; [N, T, D] -> [N, T, vocabulary]."""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.linear1 = Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.linear2 = nn.Linear(dim, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.norm(F.gelu(self.linear1(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """[N, T] of token ids -> logits [N, vocabulary, T]. Any layer may be absent.

    ValueError: the mask does not fit.
    """

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths, first=False)
        dim, hidden, features = (
            scale_count(submodel.width, n) for n in (size.dim, size.hidden, size.dim // size.heads)
        )
        self.embedding = Embedding(network.outputs, network.inputs[0], dim, size.dropout)
        layers = {
            str(index): Layer(dim, features, hidden, size, step="steps" in submodel.features)
            for index, keep in enumerate(submodel.mask[0])
            if keep
        }
        self.sections = nn.ModuleList([nn.Sequential(OrderedDict(layers))])
        self.decoder = Decoder(dim, network.outputs)
        for name, value in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(value)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sections[0](self.embedding(x))  # [N, T, D]
        return self.decoder(x).transpose(1, 2)  # type: ignore[no-any-return]


TRANSFORMER = Family(
    build=Transformer,
    presets=PRESETS,
    default="heterofl",
    inputs=1,
    typical=TypicalData((64,), 4096, "token"),
    labelled=labelled_tensors,
    features=frozenset({"scaler", "steps"}),
    help="for text; `heterofl` and `small` predict masked words, the others the next word",
    objective=objective,
    draws=True,
)
