"""Compute what several robust rules need: the centre of each coordinate, and distances between
whole updates.

Submodels nest: all devices hold the core of a tensor, only large ones its outer ring. A coordinate
held by fewer than 2 f + 1 devices keeps its old value, since f attackers would be its majority.
Rules that compare updates of equal submodels ignore a submodel with too few devices; Krum requires
2 f + 3. Their result represents the whole group: where groups overlap, they are averaged by their
numbers of devices.
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

from federated.engine.aggregate import Key, Sum, Total, bands, fold, is_inside
from federated.engine.update_part_files import PartStore, Slot
from federated.method import Tensors
from models.slicing import Where, as_slices, blocks, read_home

__all__ = [
    "Array",
    "groups",
    "least_for_krum",
    "majority",
    "per_coordinate",
    "per_submodel",
    "pick_nearest",
    "weigh_nearest",
]

log = logging.getLogger(__name__)

CELLS = 1 << 19  # values of all updates together that are processed at a time

Array = NDArray[np.float32] | NDArray[np.float64]
Centre = Callable[[Array, NDArray[np.int64], int], NDArray[np.float64]]
"""Function from [coordinates, devices] with ascending rows, the number of values at the start of
each row, and f, to one value per coordinate.
"""
Weigh = Callable[[NDArray[np.float64], int], NDArray[np.float64]]
"""Function from [devices, devices], the squared L2 distances between updates of one submodel, and
f, to one weight per device. The weights add up to the number of devices.
"""


# ---- one coordinate ---------------------------------------------------------------------------


def majority(f: int) -> int:
    """Return the number of devices per coordinate that makes f attackers a minority."""
    return 2 * f + 1


def per_coordinate(kept: PartStore, tensors: Tensors, f: int, centre: Centre) -> Total:
    """Return the centre of every coordinate that at least `majority(f)` devices hold. Leave out
    homes without one.
    """
    total, unchanged = Total(), 0
    for home, frame in kept.frame.sums.items():
        # old x count / count is old again, bit for bit
        value = torch.zeros(frame.value.shape, dtype=torch.float64)
        old, slots, enough = read_home(tensors, home, frame.value.shape), kept.slots(home), 0
        for band, weight in bands(frame):
            here = [(key, slot) for key, slot in slots if is_inside(band, slot.where)]
            for block in blocks(band, max(1, CELLS // len(here))):
                value[as_slices(block)], changed = centre_block(
                    kept, here, block, old[as_slices(block)], f, centre
                )
                enough += changed
            value[as_slices(band)] *= (
                weight.reshape(-1, *[1] * (value.dim() - 1))
                if isinstance(weight, Tensor)
                else weight
            )
        if enough:
            total.sums[home] = Sum(value, dict(frame.cover))
        unchanged += old.numel() - enough
    if unchanged:
        log.warning(
            "%d coordinates keep their old value: fewer than %d devices sent a new one",
            unchanged,
            majority(f),
        )
    return total


def centre_block(
    kept: PartStore,
    here: Sequence[tuple[Key, Slot]],
    block: Where,
    old: Tensor,
    f: int,
    centre: Centre,
) -> tuple[Tensor, int]:
    """Return a block's new values, and the number of them that the rule computed; the others are
    old.
    """
    values = np.full(
        (math.prod(b - a for a, b in block), len(here)),
        np.inf,
        np.result_type(*(slot.dtype for _, slot in here)),
    )
    for column, (key, slot) in enumerate(here):
        values[:, column] = read_block(kept, key, slot, block, absent=np.inf)
    counts = np.isfinite(values).sum(axis=1)
    values.sort(axis=1)
    enough = counts >= majority(f)
    found = np.where(enough, centre(values, np.maximum(counts, 1), f), old.numpy().reshape(-1))
    return torch.from_numpy(found.reshape(tuple(old.shape))), int(enough.sum())


def read_block(kept: PartStore, key: Key, slot: Slot, block: Where, *, absent: float) -> Array:
    """Return a part's values in a block that it covers, flat; `absent` in rows that it does not
    cover.
    """
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


# ---- whole updates ----------------------------------------------------------------------------


def least_for_krum(f: int) -> int:
    """Return the number of updates per submodel that Krum needs to withstand f attackers."""
    return 2 * f + 3


def per_submodel(
    kept: PartStore, tensors: Tensors, f: int, needed: Callable[[int], int], weigh: Weigh
) -> Total:
    """Return the weighted sum of the updates of each group of equal submodels. Ignore a group of
    fewer than `needed(f)`.
    """
    total = Total()
    for members in groups(kept):
        if len(members) < needed(f):
            log.warning(
                "Ignored %d updates: the rule needs %d of one submodel to withstand %d attackers "
                "(%s)",
                len(members),
                needed(f),
                f,
                ", ".join(str(agent) for agent, *_ in members),
            )
            continue
        weights = weigh(distances(kept, tensors, members), f).tolist()
        for key, weight in zip(members, weights, strict=True):
            if weight:
                parts = kept.parts(key)
                fold(total, (replace(part, weight=part.weight * weight) for part in parts), key)
    return total


def weigh_nearest(count: Callable[[int], int]) -> Weigh:
    """Return a function that weighs the updates nearest to the others equally, and drops the rest.

    count: returns how many of a group of n to keep
    """

    def weigh(distances: NDArray[np.float64], f: int) -> NDArray[np.float64]:
        n = len(distances)
        chosen, weights = pick_nearest(distances, f, count(n)), np.zeros(n)
        weights[chosen] = n / len(chosen)
        return weights

    return weigh


def groups(kept: PartStore) -> list[list[Key]]:
    """Return the keys of the updates, grouped by equal rectangles."""
    found: dict[tuple[tuple[str, Where], ...], list[Key]] = {}
    for key in kept.counting:
        found.setdefault(kept.signature(key), []).append(key)
    return list(found.values())


def distances(kept: PartStore, tensors: Tensors, members: Sequence[Key]) -> NDArray[np.float64]:
    """Return squared L2 distances between the changes of one group's updates, in float64. A row
    that a device does not cover has change 0.
    """
    products = np.zeros((len(members), len(members)))
    for slots in zip(*(kept.slots_of(key) for key in members), strict=True):
        old = read_home(tensors, slots[0].home, slots[0].shape)
        for block in blocks(slots[0].where, max(1, CELLS // len(members))):
            base = old[as_slices(block)].numpy().reshape(-1).astype(np.float64)
            moves = np.stack(
                [
                    read_block(kept, key, slot, block, absent=np.nan) - base
                    for key, slot in zip(members, slots, strict=True)
                ]
            )
            moves = np.nan_to_num(moves, copy=False, nan=0.0)
            products += moves @ moves.T
    squares = products.diagonal()
    found: NDArray[np.float64] = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
    return found


def pick_nearest(distances: NDArray[np.float64], f: int, count: int) -> list[int]:
    """Return the `count` updates with the least sums of squared distances to their n - f - 2
    nearest others, in order; among equal sums the earlier ones.
    """
    n = len(distances)
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    sums = np.sort(others, axis=1)[:, : n - f - 2].sum(axis=1)
    return sorted(np.argsort(sums, kind="stable")[:count].tolist())
