"""Add updates to sums block by block: with PyTorch, or several updates in one pass over memory with
functions that numba compiles (extra `fast`).

PyTorch adds one update at a time, and reads and writes the sum each time. Both round alike: one
multiply-add per entry and update, in the order of the updates.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from federated.engine.blockwise_sums import Addition, Pieces, Placed, join_spans
from federated.engine.update_contributions import Weight

__all__ = ["LEAST", "add_blockwise", "add_fused", "is_installed", "load_fused"]

log = logging.getLogger(__name__)

LEAST = 1 << 20  # entries of an update; PyTorch adds smaller ones
ZERO = np.float32(0)
PROBE = 1000  # entries whose bits are compared with PyTorch's; not a multiple of a vector

Fused = Mapping[int, Callable[..., None]]
"""Functions that add so many updates to a sum, most first."""

Scaled = tuple[Placed, Tensor, Sequence[Weight]]
"""An update: its additions, its buffer, and the factor of each row."""


def add_one(total: Any, values: Any, factors: Any, store: Any) -> None:
    (a,), (f,) = values, factors
    for i in range(total.size):
        start = ZERO if store else total[i]
        total[i] = start + f * a[i]


def add_two(total: Any, values: Any, factors: Any, store: Any) -> None:
    a, b = values
    f, g = factors
    for i in range(total.size):
        start = ZERO if store else total[i]
        total[i] = (start + f * a[i]) + g * b[i]


def add_four(total: Any, values: Any, factors: Any, store: Any) -> None:
    a, b, c, d = values
    f, g, h, k = factors
    for i in range(total.size):
        start = ZERO if store else total[i]
        total[i] = (((start + f * a[i]) + g * b[i]) + h * c[i]) + k * d[i]


def is_installed() -> bool:
    """Return True if numba is installed, without importing it."""
    return util.find_spec("numba") is not None


@lru_cache(maxsize=1)
def load_fused() -> Fused | None:
    """Compile the functions, which takes about a second. Return None if numba is not installed, or
    if its bits differ from PyTorch's on this processor.
    """
    try:
        from numba import njit
    except ImportError:
        return None
    compile_one = njit(nogil=True, fastmath={"contract"})
    functions = {4: add_four, 2: add_two, 1: add_one}
    fused: Fused = {count: compile_one(function) for count, function in functions.items()}
    rows = torch.randn(11, PROBE, generator=torch.Generator().manual_seed(0))
    expected, found = torch.zeros(PROBE), torch.full((PROBE,), torch.nan)
    for index, row in enumerate(rows):
        expected.add_(row, alpha=0.3 + index)
    add_fused(fused, found, list(rows), [0.3 + index for index in range(len(rows))], store=True)
    if not torch.equal(expected, found):
        log.warning("numba rounds differently from PyTorch on this processor and is not used")
        return None
    return fused


def add_fused(
    fused: Fused,
    total: Tensor,
    values: Sequence[Tensor],
    factors: Sequence[float],
    store: bool = False,
) -> None:
    """Add values times factors to a sum, or to 0 if `store`. All are float32 vectors of the same
    length.
    """
    arrays, numbers = [one.numpy() for one in values], [np.float32(one) for one in factors]
    done, out = 0, total.numpy()
    for count, add in fused.items():
        while len(arrays) - done >= count:
            piece = slice(done, done + count)
            add(out, tuple(arrays[piece]), tuple(numbers[piece]), store)
            done, store = done + count, False


def add_blockwise(updates: Sequence[Scaled], new: Pieces) -> None:
    """Add updates to the sums, those with the same additions in one pass where `load_fused` can.

    new: pieces that hold any values, which count as 0
    """
    groups = [list(group) for _, group in itertools.groupby(updates, key=lambda one: id(one[0]))]
    blocks = sorted({*new, *(block for placed, *_ in updates for block in placed)})
    large = any(len(group) > 1 and group[0][1].numel() >= LEAST for group in groups)
    fused = load_fused() if large else None
    threads = torch.get_num_threads()

    def add(block: int) -> None:
        add_block(groups, block, fused, new.get(block, ()))

    if fused is None or threads == 1:  # PyTorch itself uses all threads for each addition
        for block in blocks:
            add(block)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(add, blocks))


def add_block(
    groups: Sequence[Sequence[Scaled]], block: int, fused: Fused | None, new: Sequence[Tensor]
) -> None:
    """Add the updates of each group, which have the same additions, to one block of the sums.

    new: pieces of the block that hold any values. The first update takes their place if it fills
        them, which saves a pass over them.
    """
    store = bool(new and groups) and can_store(groups[0][0], block, new)
    for piece in () if store else new:
        piece.numpy().fill(0)
    for group in groups:
        placed, _, factors = group[0]
        additions = placed.get(block, ())
        if fused and len(group) > 1 and can_fuse([one for _, one in additions], factors):
            for target, one in additions:
                span = slice(one.offset, one.offset + one.size[0])
                values = [flat[span] for _, flat, _ in group]
                scales = [float(factors[one.row]) for _, _, factors in group]
                add_fused(fused, target, values, scales, store)
            store = False
            continue
        for _, flat, factors in group:
            for target, one in additions:
                one.add(target, flat, factors[one.row], store)
            store = False


def can_store(update: Scaled, block: int, new: Sequence[Tensor]) -> bool:
    """Return True if each addition to the block has one factor, and together they fill exactly
    these pieces, except for padding.
    """
    placed, _, factors = update
    additions = placed.get(block, ())
    if any(
        isinstance(factors[one.row], Tensor) or one.target != (1,) or not one.fills
        for _, one in additions
    ):
        return False
    spans = join_spans((target.data_ptr() // 4, target.numel()) for target, _ in additions)
    return spans == [(piece.data_ptr() // 4, piece.numel()) for piece in new]


def can_fuse(additions: Sequence[Addition], factors: Sequence[Weight]) -> bool:
    """Return True if each addition covers contiguous entries with one factor, and no two of them
    cover the same entry, so that their order does not matter.
    """
    if any(
        (one.stride, one.target) != ((1,), (1,)) or isinstance(factors[one.row], Tensor)
        for one in additions
    ):
        return False
    covered = sorted((one.buffer, one.start, one.start + one.size[0]) for one in additions)
    return all(a[0] < b[0] or a[2] <= b[1] for a, b in itertools.pairwise(covered))
