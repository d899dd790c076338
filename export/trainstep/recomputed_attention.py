"""Attention without a mask given as a tensor, whose backward pass computes the probabilities again
instead of keeping them: they take more memory than everything else in a vision transformer.

With q, k, v [..., T, E] and the scale f:

    p = softmax(f q k^T)          over the last axis; places after a query's own are -inf if causal
    y = p v
    dv = p^T g,   ds = p (g v^T - sum(g y)),   dq = f ds k,   dk = f ds^T q

As in FlashAttention (Dao et al., arXiv 2205.14135), section 3.1, the sum over g y replaces one over
the product of p and its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode

__all__ = ["RecomputedAttention"]

BLOCK = 2**20  # most numbers of the probabilities that exist at once, except in long sequences
BLOCKS = 16  # most blocks of one attention: the graph has the operators of each
PLAIN = {"attn_mask": None, "dropout_p": 0.0, "enable_gqa": False}  # arguments that it supports


class Attend(torch.autograd.Function):
    """(q, k, v, scale, causal) -> y."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        found = [weigh(q, k, causal) @ v for q, k, v in split(q * scale, k, v)]
        y = torch.cat(found) if len(found) > 1 else found[0]
        ctx.save_for_backward(q, k, v, y)
        ctx.scale, ctx.causal = scale, causal
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        blocks = split(*ctx.saved_tensors, *grads)
        found = [differentiate(block, ctx.scale, ctx.causal) for block in blocks]
        return (*(found[0] if len(found) == 1 else join(found)), None, None)


def split(q: Tensor, k: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Return at most BLOCKS blocks of examples, whose probabilities have at most BLOCK numbers each
    if so many blocks suffice.
    """
    tensors = (q, k, *others)
    rows = BLOCK // (math.prod(q.shape[1:-1]) * k.shape[-2])
    rows = max(rows, math.ceil(len(q) / BLOCKS))
    if q.dim() < 3 or rows >= len(q):
        return [tensors]
    return [tuple(one[i : i + rows] for one in tensors) for i in range(0, len(q), rows)]


def join(blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return tensors of which each block has some examples. Those of a block are one tensor at
    first, so that ONNX Runtime computes a block whole before the next one.
    """
    rows = torch.cat([torch.cat([one.flatten(1) for one in block], 1) for block in blocks])
    ends = [0, *accumulate(one[0].numel() for one in blocks[0])]
    parts = [rows[:, start:end] for start, end in pairwise(ends)]
    return [part.reshape(-1, *one.shape[1:]) for part, one in zip(parts, blocks[0], strict=True)]


def differentiate(
    block: Sequence[Tensor], scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. block: these, y and g."""
    q, k, v, y, g = block
    # scaled differently than in the forward pass, or ONNX Runtime would compute both once and keep
    # the result
    p = weigh(q, k * scale, causal)
    ds = p * (g @ v.transpose(-2, -1) - (g * y).sum(-1, keepdim=True))
    return ds @ (k * scale), ds.transpose(-2, -1) @ (q * scale), p.transpose(-2, -1) @ g


def weigh(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Return the probabilities: [..., T, S]."""
    scores = q @ k.transpose(-2, -1)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1)


class RecomputedAttention(TorchFunctionMode):
    """Within this context, `F.scaled_dot_product_attention` computes its probabilities twice."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if any(given.get(name, plain) != plain for name, plain in PLAIN.items()):
            return func(*args, **kwargs)
        q, k, v = (given[name] for name in names[:3])
        if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:  # broadcast
            return func(*args, **kwargs)
        scale = given.get("scale")
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        return Attend.apply(q, k, v, scale, given.get("is_causal", False))  # type: ignore[no-untyped-call]
