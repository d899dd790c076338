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
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode

__all__ = ["RecomputedAttention"]

PLAIN = {"attn_mask": None, "dropout_p": 0.0, "enable_gqa": False}  # arguments that it supports


class Attend(torch.autograd.Function):
    """(q, k, v, scale, causal) -> y."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        y = weigh(q * scale, k, causal) @ v
        ctx.save_for_backward(q, k, v, y)
        ctx.scale, ctx.causal = scale, causal
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,), (q, k, v, y), scale = grads, ctx.saved_tensors, ctx.scale
        # scaled differently than in the forward pass, or ONNX Runtime would compute both once and
        # keep the result
        p = weigh(q, k * scale, ctx.causal)
        ds = p * (g @ v.transpose(-2, -1) - (g * y).sum(-1, keepdim=True))
        return (
            ds @ (k * scale),
            ds.transpose(-2, -1) @ (q * scale),
            p.transpose(-2, -1) @ g,
            None,
            None,
        )


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
