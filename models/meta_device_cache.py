"""Speed up the meta device: cache the result of each operation of a pass per input shapes, and skip
operations that only fill a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

__all__ = ["ShapeCache", "WithoutValues"]

FILLS = {
    *(Tensor.fill_, Tensor.normal_, Tensor.uniform_, Tensor.zero_),
    *(nn.init.constant_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_),
}


class ShapeCache(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that reuses the result of an operation for inputs of the same shapes.

    Results on the meta device have shapes but no values, so a repeated call returns new tensors of
    the cached shapes. PyTorch computes most of these shapes in Python, and a network repeats its
    blocks. Enter this mode first: modes entered after it (counters, tracers) still see every
    operation.
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
        key = func, str(structure), *map(describe, leaves)
        if key in self.known:
            return tree_map(
                recreate, self.known[key], is_leaf=lambda value: isinstance(value, TensorSpec)
            )
        out = func(*args, **kwargs)
        made = [value for value in tree_leaves(out) if isinstance(value, Tensor)]
        given = {value.untyped_storage()._cdata for value in leaves if isinstance(value, Tensor)}
        if all(value.is_meta and value.untyped_storage()._cdata not in given for value in made):
            # A result that shares storage with an input is not cached: the operation works in place
            # or returns a view. One that has values is not, either.
            self.known[key] = tree_map(describe, out)
        return out


class TensorSpec(tuple[Any, ...]):
    """Shape, strides and dtype of a tensor."""


def describe(value: Any) -> Any:
    return (
        TensorSpec((value.shape, value.stride(), value.dtype))
        if isinstance(value, Tensor)
        else value
    )


def recreate(value: Any) -> Any:
    return (
        torch.empty_strided(*value[:2], dtype=value[2], device="meta")
        if isinstance(value, TensorSpec)
        else value
    )


class WithoutValues(TorchFunctionMode):
    """Skip operations that only fill a tensor, which is useless on the meta device and takes most
    of the time there, since PyTorch decomposes random draws in Python.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in FILLS and (filled := args[0] if args else kwargs["tensor"]).is_meta:
            return filled
        return func(*args, **kwargs)
