"""Quicker passes on the meta device: an operation's result follows from the shapes that it is
given, so it is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

__all__ = ["Remembering"]


class Remembering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers from memory what an operation gave for the same shapes before: new tensors, of no
    values, on the meta device.

    Enter it first: what counts or follows operations within it still sees every one. PyTorch works
    out most of them in Python, and a network repeats its blocks.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[Any, Any] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        leaves, structure = tree_flatten((args, kwargs))
        key = func, str(structure), *map(described, leaves)
        if key in self.known:
            return tree_map(
                made, self.known[key], is_leaf=lambda value: isinstance(value, Described)
            )
        out = func(*args, **kwargs)
        given = {value.untyped_storage()._cdata for value in leaves if isinstance(value, Tensor)}
        if not any(
            isinstance(value, Tensor) and value.untyped_storage()._cdata in given
            for value in tree_leaves(out)
        ):
            self.known[key] = tree_map(described, out)  # else it changes or shares what it is given
        return out


class Described(tuple[Any, ...]):
    """Shape, strides and type of a tensor."""


def described(value: Any) -> Any:
    return (
        Described((value.shape, value.stride(), value.dtype))
        if isinstance(value, Tensor)
        else value
    )


def made(value: Any) -> Any:
    return (
        torch.empty_strided(*value[:2], dtype=value[2], device="meta")
        if isinstance(value, Described)
        else value
    )
