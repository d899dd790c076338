"""What a pass of a network asks of a machine, counted operation by operation on the meta device,
where nothing is computed.

Arithmetic is counted as vector units do it: a layer of 20 channels keeps units of 16 lanes as busy
as one of 32. So narrow submodels, whose channels are rarely round, cost more than their
multiply-adds say. Memory is followed as tensors come and go, as autograd holds them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.families.catalogue import build, example
from models.meta import Remembering
from models.submodel import Objective, Submodel

__all__ = ["LANES", "Work", "work"]

Shape = tuple[int, ...]

LANES = (4, 8, 16)  # 32-bit floats of a vector: NEON and SSE, AVX2, AVX-512
FEW = 4  # channels up to which convolutions don't fill up their vectors: an image's colours

aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
FLASH = aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Work:
    """macs: multiply-adds with channels filled up to vectors of so many lanes, as in LANES. moved:
    bytes that operations read and write.

    calls: operations. live: the most bytes of tensors at one time, parameters included. span: bytes
    of the largest convolution, all it reads and writes (0 without any).
    """

    macs: tuple[int, ...]
    moved: int
    calls: int
    live: int
    span: int


@lru_cache(maxsize=4096)
def work(submodel: Submodel, batch: int, *, training: bool = True) -> Work:
    """Of a training step without its optimiser (forward, loss, backward), or of an inference, of
    `batch` examples.

    A training step is counted of at least two, since batch norm needs a variance.
    """
    net = build(submodel, "meta").train(training)
    x, exits = (
        example(submodel.network, max(2, batch) if training else batch, "meta"),
        any(f.startswith("exits") for f in submodel.features),
    )
    log = Log([*net.parameters(), *net.buffers(), x])
    with Flash(), Remembering(), log, nullcontext() if training else torch.no_grad():
        # a method, which Module's type forgets
        outs = net.exits(x) if exits and training else [net(x)]  # type: ignore[operator]
        if training:
            torch.stack([loss(out, submodel.network.objective) for out in outs]).mean().backward()  # type: ignore[no-untyped-call]
    return Work(tuple(log.macs), log.moved, log.calls, log.most, log.span)


def loss(out: Tensor, objective: Objective) -> Tensor:
    """Of empty truth, by an objective's own function: what it keeps for backward may outweigh a
    small network.
    """
    if objective == "value":
        return F.mse_loss(out, torch.zeros_like(out))
    return F.cross_entropy(
        out, torch.zeros((out.shape[0], *out.shape[2:]), dtype=torch.int64, device=out.device)
    )


class Flash(TorchFunctionMode):
    """Plain attention as processors compute it, in one operation that keeps no scores; the meta
    device would take it apart.
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


class Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up every operation below autograd, and follows which storages are alive; of those that
    exist already, `held`, all the time.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs, self.moved, self.calls, self.span = [0] * len(LANES), 0, 0, 0
        self.live = self.most = 0
        self.alive: dict[int, weakref.ref[Any]] = {}
        for value in held:
            self.hold(value)

    def hold(self, value: Tensor) -> None:
        """Counts a storage until it is freed."""
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
        given, made = (
            [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
            for tree in ((args, kwargs), out)
        )
        known = {x.untyped_storage()._cdata for x in given}
        view = not func._schema.is_mutable and any(
            x.untyped_storage()._cdata in known for x in made
        )
        if not view and given:  # a view moves nothing, and what is only allocated neither
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


def filled(count: int, lanes: int) -> int:
    return -(-int(count) // lanes) * lanes


def convolution(args: tuple[Any, ...], out: Tensor, lanes: int) -> int:
    """Each weight multiplies once at each position."""
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    return places(x if transposed else out) * weights(weight.shape, groups, lanes)


def convolution_backward(args: tuple[Any, ...], out: Any, lanes: int) -> int:
    """As forward, for each gradient that is needed, of input and weight."""
    grad, x, weight, transposed, groups, needed = *args[:3], args[7], args[9], args[10]
    return (
        int(sum(needed[:2]))
        * places(x if transposed else grad)
        * weights(weight.shape, groups, lanes)
    )


def places(x: Tensor) -> int:
    return int(x.numel() // x.shape[1])


def weights(shape: Shape, groups: int, lanes: int) -> int:
    """Of a convolution, in whole vectors; of groups of channels as they are: those wait for
    memory.
    """
    channels = shape[:2] if groups > 1 else [n if n <= FEW else filled(n, lanes) for n in shape[:2]]
    return math.prod((*channels, *shape[2:]))


def product(args: tuple[Any, ...], out: Tensor, lanes: int) -> int:
    """Of two matrices, or of a batch of them, the last two of the arguments: [..., M, K] and [...,
    K, N]; M rows may be as few as they are.
    """
    *several, m, k = args[-2].shape
    n = args[-1].shape[-1]
    return int(math.prod(several) * m) * filled(k, lanes) * filled(n, lanes)


def attention(products: int, query: Tensor, key: Tensor, lanes: int) -> int:
    """Of so many products over queries and keys, [N, heads, T, features]."""
    return int(products * math.prod(query.shape[:3]) * key.shape[2] * filled(query.shape[3], lanes))


FORMULAS: Mapping[Any, Callable[[tuple[Any, ...], Any, int], int]] = MappingProxyType(
    {
        aten.convolution: convolution,
        aten.convolution_backward: convolution_backward,
        **dict.fromkeys((aten.mm, aten.addmm, aten.bmm, aten.baddbmm), product),
        FLASH: lambda args, out, lanes: attention(2, args[0], args[1], lanes),
        # the scores are made again
        FLASH_BACKWARD: lambda args, out, lanes: attention(5, args[1], args[2], lanes),
    }
)
