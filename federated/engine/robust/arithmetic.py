"""What robust rules share: a centre of each coordinate, and distances between whole updates.

Submodels nest: the core of a tensor is held by all devices, its outer ring by large ones alone. A
coordinate that fewer than 2 f + 1 devices hold keeps its old value, since f liars would be its
majority. A submodel with fewer than 2 f + 3 devices is left out by rules that compare updates of
equal submodels. What such a rule selects stands for its whole group: where groups overlap, they are
averaged by their numbers of devices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.aggregate import Key, Sum, Total, bands, fold, inside
from federated.engine.blocks import blocks
from federated.engine.kept_parts import Kept, Slot
from federated.method import Tensors
from models.slicing import Where, as_slices, present

__all__ = [
    "Array",
    "Centre",
    "for_distances",
    "groups",
    "majority",
    "nearest",
    "per_coordinate",
    "selected",
]

log = logging.getLogger(__name__)

CELLS = 1 << 19  # values, of all updates together, that are looked at at a time

Array = NDArray[np.float32] | NDArray[np.float64]
Centre = Callable[[Array, NDArray[np.int64], int], NDArray[np.float64]]
"""From [coordinates, devices], each row rising, the number of values at the start of each row, and
f: one value per coordinate.
"""


# ---- of one coordinate ---------------------------------------------------------------------------


def majority(f: int) -> int:
    """How many devices of a coordinate make f liars a minority."""
    return 2 * f + 1


def per_coordinate(kept: Kept, tensors: Tensors, f: int, centre: Centre) -> Total:
    """The centre of every coordinate that `majority(f)` devices hold; a home without one is left
    out.
    """
    total, few = Total(), 0
    for home, frame in kept.frame.sums.items():
        # old x count / count is old again, bit for bit
        value = torch.zeros(frame.value.shape, dtype=torch.float64)
        old, slots, enough = present(tensors, home, frame.value.shape), kept.slots(home), 0
        for band, weight in bands(frame):
            here = [(key, slot) for key, slot in slots if inside(band, slot.where)]
            for block in blocks(band, max(1, CELLS // len(here))):
                value[as_slices(block)], held = settled(
                    kept, here, block, old[as_slices(block)], f, centre
                )
                enough += held
            value[as_slices(band)] *= (
                weight.reshape(-1, *[1] * (value.dim() - 1))
                if isinstance(weight, Tensor)
                else weight
            )
        if enough:
            total.sums[home] = Sum(value, dict(frame.cover))
        few += old.numel() - enough
    if few:
        log.warning(
            "%d coordinates keep their old value: fewer than %d devices gave one", few, majority(f)
        )
    return total


def settled(
    kept: Kept, here: Sequence[tuple[Key, Slot]], block: Where, old: Tensor, f: int, centre: Centre
) -> tuple[Tensor, int]:
    """A block's new values, and how many of them are the rule's; the others are the old ones."""
    values = np.full(
        (math.prod(b - a for a, b in block), len(here)),
        np.inf,
        np.result_type(*(slot.dtype for _, slot in here)),
    )
    for column, (key, slot) in enumerate(here):
        values[:, column] = cut(kept, key, slot, block, absent=np.inf)
    counts = np.isfinite(values).sum(axis=1)
    values.sort(axis=1)
    enough = counts >= majority(f)
    found = np.where(enough, centre(values, np.maximum(counts, 1), f), old.numpy().reshape(-1))
    return torch.from_numpy(found.reshape(tuple(old.shape))), int(enough.sum())


def cut(kept: Kept, key: Key, slot: Slot, block: Where, *, absent: float) -> Array:
    """A part's values in a block that it covers, flat; `absent` in rows that it does not give."""
    inner = tuple(
        (a - start, b - start) for (a, b), (start, _) in zip(block, slot.where, strict=True)
    )
    found: Array = kept.read(key, slot, inner).reshape(-1)
    if slot.rows is None:
        return found
    rows = np.array(slot.rows[inner[0][0] : inner[0][1]])
    return np.where(
        np.repeat(rows, found.size // max(1, rows.size)), found, found.dtype.type(absent)
    )


# ---- of whole updates ----------------------------------------------------------------------------


def for_distances(f: int) -> int:
    """How many updates of a submodel Krum's distances need to withstand f liars."""
    return 2 * f + 3


def selected(kept: Kept, tensors: Tensors, f: int, count: Callable[[int], int]) -> Total:
    """The sum of the updates that are nearest to the others, in each group of equal submodels.

    count: how many of a group of n are selected.
    """
    total = Total()
    for members in groups(kept):
        n = len(members)
        if n < for_distances(f):
            log.warning(
                "%d updates are left out: of their submodel Krum needs %d to outvote %d (%s)",
                n,
                for_distances(f),
                f,
                ", ".join(map(name, members)),
            )
            continue
        chosen = nearest(distances(kept, tensors, members), f, count(n))
        for key in (members[i] for i in chosen):
            fold(
                total,
                (replace(part, weight=part.weight * n / len(chosen)) for part in kept.parts(key)),
                key,
            )
    return total


def groups(kept: Kept) -> list[list[Key]]:
    """The keys of updates that give the same rectangles."""
    found: dict[tuple[tuple[str, Where], ...], list[Key]] = {}
    for key in kept.counting:
        found.setdefault(kept.signature(key), []).append(key)
    return list(found.values())


def distances(kept: Kept, tensors: Tensors, members: Sequence[Key]) -> NDArray[np.float64]:
    """Squared L2 distances between the updates of one group, in float64, of how far each moved; a
    row that a device does not give did not move.
    """
    products = np.zeros((len(members), len(members)))
    for slots in zip(*(kept.of(key) for key in members), strict=True):
        old = present(tensors, slots[0].home, slots[0].shape)
        for block in blocks(slots[0].where, max(1, CELLS // len(members))):
            base = old[as_slices(block)].numpy().reshape(-1).astype(np.float64)
            moves = np.stack(
                [
                    cut(kept, key, slot, block, absent=np.nan) - base
                    for key, slot in zip(members, slots, strict=True)
                ]
            )
            moves = np.nan_to_num(moves, copy=False, nan=0.0)
            products += moves @ moves.T
    squares = products.diagonal()
    found: NDArray[np.float64] = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
    return found


def nearest(distances: NDArray[np.float64], f: int, count: int) -> list[int]:
    """The `count` updates with the least sums of squared distances to their n - f - 2 nearest
    others, in order; of equal sums the earlier ones.
    """
    n = len(distances)
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    sums = np.sort(others, axis=1)[:, : n - f - 2].sum(axis=1)
    return sorted(np.argsort(sums, kind="stable")[:count].tolist())


def name(key: Key) -> str:
    return str(key[0])
