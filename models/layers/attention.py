"""Attention with an axis per head, and the feed-forward layer, for transformers that scale in
width.

Vaswani et al., Attention Is All You Need (arXiv 1706.03762), section 3.2. A narrow attention keeps
every head and the leading features inside each, not a prefix of all heads' concatenated features
(HeteroFL, arXiv 2010.01264). Every tensor therefore has an axis for heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.basic import Linear

__all__ = ["Attention", "FeedForward"]


class MultiAxisLinear(Linear):
    """A linear layer, [..., I] -> [..., O], whose weight [*outputs, *inputs] and bias [*outputs]
    keep the axes that their features consist of.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        super().__init__(math.prod(inputs), math.prod(outputs))
        self.weight = nn.Parameter(self.weight.detach().reshape(*outputs, *inputs))
        self.bias = nn.Parameter(self.bias.detach().reshape(outputs))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.reshape(self.out_features, self.in_features)
        return self.scaler(F.linear(input, weight, self.bias.flatten()))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head self-attention, [N, T, D] -> [N, T, D]. Scores are divided by the square root of
    the features that a head keeps.

    causal: each position attends only to itself and earlier ones
    step: scale the output by a learnable factor, initially 1 (NeFL, arXiv 2308.07761, eq. 4)
    """

    def __init__(
        self, dim: int, heads: int, features: int, *, causal: bool = False, step: bool = False
    ) -> None:
        super().__init__()
        self.shape, self.causal = (3, heads, features), causal
        self.project = MultiAxisLinear((dim,), self.shape)  # query, key, value
        self.out = MultiAxisLinear((heads, features), (dim,))
        self.step = nn.Parameter(torch.ones(1)) if step else None

    def forward(self, x: Tensor) -> Tensor:
        # each [N, heads, T, features]
        query, key, value = self.project(x).unflatten(-1, self.shape).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        y: Tensor = self.out(seen.transpose(1, 2).flatten(2))  # [N, T, D]
        return y if self.step is None else self.step * y


class FeedForward(nn.Module):
    """linear, GELU, linear at each position, [N, T, D] -> [N, T, D]; `step` as in Attention."""

    def __init__(self, dim: int, hidden: int, *, dropout: float = 0.0, step: bool = False) -> None:
        super().__init__()
        self.linear1 = Linear(dim, hidden)
        self.linear2 = Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)
        self.step = nn.Parameter(torch.ones(1)) if step else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear2(self.dropout(F.gelu(self.linear1(x))))  # [N, T, hidden] within
        return y if self.step is None else self.step * y
