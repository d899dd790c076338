"""Dropout and stochastic depth with draws that the caller gives, since a graph whose results can be
repeated draws nothing itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode

__all__ = ["Draw", "GivenDraws"]

# function -> number of leading axes on which it draws; 0: all
DROPOUTS: Mapping[Callable[..., Any], int] = {
    F.dropout: 0,
    F.dropout1d: 2,
    F.dropout2d: 2,
    F.dropout3d: 2,
}


@dataclass(frozen=True)
class Draw:
    """One draw of a forward pass: ones (keep) and zeros (drop) of a shape.

    keep: probability of a one
    """

    shape: tuple[int, ...]
    keep: float


class GivenDraws(TorchFunctionMode):
    """Within this context, the draws of a network in training come from a list, in the order of its
    forward pass.

    given: masks of float; None: all ones, to find out which draws there are
    found: the draws so far
    """

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.given, self.found = given, list[Draw]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            asked = inspect.signature(func).bind(*args, **kwargs)
            asked.apply_defaults()
            x, p = asked.arguments["input"], asked.arguments["p"]
            if not asked.arguments["training"] or not p:
                return x
            axes = DROPOUTS[func] or x.dim()
            shape = (*x.shape[:axes], *[1] * (x.dim() - axes))
            return x * self._draw(shape, 1 - p, x) / (1 - p)
        if func is torch.Tensor.bernoulli_:
            x, p = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return self._draw(tuple(x.shape), p, x)
        return func(*args, **kwargs)

    def _draw(self, shape: tuple[int, ...], keep: float, like: Tensor) -> Tensor:
        self.found.append(Draw(shape, keep))
        if self.given is None:
            return like.new_ones(shape)
        mask = self.given[len(self.found) - 1]
        assert mask.shape == shape, "the network draws otherwise than it did at first"
        return mask.to(like.dtype)
