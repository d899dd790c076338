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

__all__ = ["ShapeCache", "WithoutValues", "list_tensors"]

# Results by operation and inputs. Passes share them: the submodels of a menu repeat their shapes.
KNOWN: dict[Any, Any] = {}
LIMIT = 20_000  # results; a pass has up to hundreds that differ
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

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        key = func, describe(args), *((name, describe(value)) for name, value in kwargs.items())
        if (found := KNOWN.get(key)) is not None:
            return recreate(found)
        out = func(*args, **kwargs)
        made = list_tensors(out)
        given = {x.untyped_storage()._cdata for x in list_tensors((args, *kwargs.values()))}
        if all(x.is_meta and x.untyped_storage()._cdata not in given for x in made):
            # A result that shares storage with an input is not cached: the operation works in place
            # or returns a view. One that has values is not, either.
            if len(KNOWN) >= LIMIT:
                KNOWN.clear()
            KNOWN[key] = describe(out)
        return out


class TensorSpec(tuple[Any, ...]):
    """Shape, strides and dtype of a tensor."""


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors among the arguments or results of an operation, which are in lists at
    most. PyTorch's functions for trees take longer than many operations.
    """
    if isinstance(value, Tensor):
        return [value]
    return [x for inner in value for x in list_tensors(inner)] if is_list(value) else []


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def describe(value: Any) -> Any:
    """Return an argument or a result as a value to compare: numbers of two types differ, since the
    types of results do.
    """
    if isinstance(value, Tensor):
        return TensorSpec((value.shape, value.stride(), value.dtype, value.device))
    return (type(value), *map(describe, value)) if is_list(value) else (type(value), value)


def recreate(described: Any) -> Any:
    """Return a result with new tensors on the meta device."""
    if isinstance(described, TensorSpec):
        return torch.empty_strided(*described[:2], dtype=described[2], device="meta")
    kind, *inner = described
    return kind(map(recreate, inner)) if issubclass(kind, list | tuple) else inner[0]


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
