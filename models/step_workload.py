"""Count the work of one pass of a network: arithmetic, memory traffic and peak memory. The pass
runs on the meta device, which computes no values.

Arithmetic is counted in whole vectors: on vectors of 16 lanes, a layer of 20 channels costs as much
as one of 32. Narrow submodels rarely have round channel counts, so they cost more than their
multiply-adds suggest. Memory is tracked as tensors are allocated and freed, as autograd holds them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from models.layers.early_exits import run_exits
from models.meta_device_speedups import ShapeCache, list_tensors
from models.submodel import Objective, Submodel
from models.submodel_building import rehearsal

__all__ = ["LANES", "work"]

Shape = tuple[int, ...]

LANES = (4, 8, 16)  # 32-bit floats per vector: NEON and SSE, AVX2, AVX-512
FEW = 4  # convolutions of up to this many channels (an image's colours) do not pad them to vectors

aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
FLASH = aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Work:
    """Work of one pass.

    macs: multiply-adds with channels rounded up to whole vectors, one count per entry of LANES
    moved: bytes that operations read and write
    calls: number of operations
    live: peak bytes of tensors, parameters included
    span: bytes that the largest convolution reads and writes (0 without any)
    """

    macs: tuple[int, ...]
    moved: int
    calls: int
    live: int
    span: int


@lru_cache(maxsize=4096)
def work(submodel: Submodel, batch: int, *, training: bool = True) -> Work:
    """Count the work of a training step without its optimiser (forward, loss, backward), or of an
    inference, for `batch` examples.

    A training step is counted for at least two examples, since batch norm needs a variance.
    """
    net, x = rehearsal(submodel, max(2, batch) if training else batch)
    net.train(training)
    log = OperationLog([*net.parameters(), *net.buffers(), x])
    with FlashAttention(), ShapeCache(), log, nullcontext() if training else torch.no_grad():
        outs = run_exits(net, submodel, x) if training else [net(x)]
        if training:
            torch.stack([loss(out, submodel.network.objective) for out in outs]).mean().backward()  # type: ignore[no-untyped-call]
    return Work(tuple(log.macs), log.moved, log.calls, log.most, log.span)


def loss(out: Tensor, objective: Objective) -> Tensor:
    """Return an objective's loss against dummy targets: the tensors that it keeps for backward may
    outweigh a small network.
    """
    if objective == "value":
        return F.mse_loss(out, torch.zeros_like(out))
    return F.cross_entropy(
        out, torch.zeros((out.shape[0], *out.shape[2:]), dtype=torch.int64, device=out.device)
    )


class FlashAttention(TorchFunctionMode):
    """Run plain attention as the CPU does, in one operation that keeps no scores; the meta device
    would decompose it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        plain = (
            func is F.scaled_dot_product_attention
            and len(args) == 3
            and kwargs.keys() <= {"is_causal"}
        )
        if plain and all(x.dim() == 4 and x.shape[-1] == args[0].shape[-1] for x in args):
            return FLASH(*args, 0.0, kwargs.get("is_causal", False))[0]
        return func(*args, **kwargs)


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add up every operation below autograd and track the live storages.

    held: tensors that exist for the whole pass
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs, self.moved, self.calls, self.span = [0] * len(LANES), 0, 0, 0
        self.live = self.most = 0
        self.alive: dict[int, weakref.ref[Any]] = {}
        for value in held:
            self.hold(value)

    def hold(self, value: Tensor) -> None:
        """Count a storage until it is freed."""
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.alive:
            self.live += size
            self.most = max(self.most, self.live)
            self.alive[key] = weakref.ref(storage, lambda _: self.free(key, size))

    def free(self, key: int, size: int) -> None:
        del self.alive[key]
        self.live -= size

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given, made = list_tensors((args, *kwargs.values())), list_tensors(out)
        known = {x.untyped_storage()._cdata for x in given}
        view = not func._schema.is_mutable and any(
            x.untyped_storage()._cdata in known for x in made
        )
        if not view and given:  # views and mere allocations move no data
            self.count(func.overloadpacket, args, out, sum(x.nbytes for x in (*given, *made)))
        for value in made:
            self.hold(value)
        return out

    def count(self, operation: Any, args: tuple[Any, ...], out: Any, size: int) -> None:
        self.calls += 1
        self.moved += size
        if operation in CONVOLUTIONS:
            self.span = max(self.span, size)
        if operation in FORMULAS:
            for i, lanes in enumerate(LANES):
                self.macs[i] += FORMULAS[operation](args, out, lanes)


def round_up(count: int, lanes: int) -> int:
    """Round a count up to a multiple of `lanes`."""
    return -(-int(count) // lanes) * lanes


def count_convolution(args: tuple[Any, ...], out: Tensor, lanes: int) -> int:
    """Count a forward pass: each weight multiplies once at each position."""
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    return count_places(x if transposed else out) * count_weights(weight.shape, groups, lanes)


def count_backward(args: tuple[Any, ...], out: Any, lanes: int) -> int:
    """Count a backward pass: as many as forward for each required gradient, of input and weight."""
    grad, x, weight, transposed, groups, needed = *args[:3], args[7], args[9], args[10]
    return (
        int(sum(needed[:2]))
        * count_places(x if transposed else grad)
        * count_weights(weight.shape, groups, lanes)
    )


def count_places(x: Tensor) -> int:
    return int(x.numel() // x.shape[1])


def count_weights(shape: Shape, groups: int, lanes: int) -> int:
    """Count a convolution's weights in whole vectors.

    Grouped channels are not rounded up: grouped convolutions are limited by memory.
    """
    channels = (
        shape[:2] if groups > 1 else [n if n <= FEW else round_up(n, lanes) for n in shape[:2]]
    )
    return math.prod((*channels, *shape[2:]))


def count_product(args: tuple[Any, ...], out: Tensor, lanes: int) -> int:
    """Count the product of the last two arguments, [..., M, K] and [..., K, N], batched or not.

    Only K and N are rounded up to whole vectors.
    """
    *several, m, k = args[-2].shape
    n = args[-1].shape[-1]
    return int(math.prod(several) * m) * round_up(k, lanes) * round_up(n, lanes)


def count_attention(products: int, query: Tensor, key: Tensor, lanes: int) -> int:
    """Count `products` matrix products over queries and keys, [N, heads, T, features]."""
    return int(
        products * math.prod(query.shape[:3]) * key.shape[2] * round_up(query.shape[3], lanes)
    )


FORMULAS: Mapping[Any, Callable[[tuple[Any, ...], Any, int], int]] = {
    aten.convolution: count_convolution,
    aten.convolution_backward: count_backward,
    **dict.fromkeys((aten.mm, aten.addmm, aten.bmm, aten.baddbmm), count_product),
    FLASH: lambda args, out, lanes: count_attention(2, args[0], args[1], lanes),
    # the backward pass computes the scores again
    FLASH_BACKWARD: lambda args, out, lanes: count_attention(5, args[1], args[2], lanes),
}
