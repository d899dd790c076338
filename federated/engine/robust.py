"""Rules that outlive devices that send what they like: of every coordinate, or of every group of
equal submodels, f may be anything at all.

Against the mean, which one liar moves as far as it wants (Blanchard et al., arXiv 1703.02757, Lemma
3.1), these look at all values of a coordinate, or at whole updates, beside each other. They run on
nested submodels:

    trimmed    of the m devices that hold a coordinate, the mean without the f largest and the f
               smallest values (Yin et al., arXiv 1803.01498, Definition 2)
    median     of the m devices that hold a coordinate, the middle value, or the mean of the two
               middle ones (ibid., Definition 1)
    krum       of the n devices of one submodel, the update with the least sum of squared distances
               to its n - f - 2 nearest (Blanchard et al., section 4)
    multikrum  the n - f - 2 updates with the least such sums, the most for which that is proven
               (El Mhamdi et al., arXiv 1802.07927)

A rectangle's m is its own: corners nest, so that the core of a tensor is held by all and its outer
ring by large devices alone. A coordinate with m < 2 f + 1 keeps its old value, since f liars would
be its majority; likewise a submodel with n < 2 f + 3 devices is left out under Krum, which compares
only what has the same coordinates. What is chosen stands for its whole group: where groups overlap
they are averaged by their devices.

All count the same, as in the papers: weights by examples are claims, and with them one liar could
be the majority of a coordinate by itself. Each device counts once: where a late update of it came
into the same round, its last one does. A row that a device does not have (of a class that it does
not hold) is not covered by it.

What comes out is an ordinary `Total` of which the mean is the rule's result, so that every method's
`finish` works on as it does otherwise.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.aggregate import Key, Part, Sum, Total, bands, fold, inside
from federated.engine.blocks import blocks
from federated.engine.kept_parts import Kept, Slot
from federated.engine.update_norms import clipped, counted, grounded, length
from federated.errors import ConfigError
from federated.method import Method, State, Tensors
from federated.task import Update
from models.slicing import Plan, Where, at, present

__all__ = ["RULES", "combine", "median", "nearest", "needed", "robust", "trimmed"]

log = logging.getLogger(__name__)

CELLS = 1 << 19  # values, of all updates together, that are looked at at a time

Array = NDArray[np.float32] | NDArray[np.float64]
Centre = Callable[[Array, NDArray[np.int64], int], NDArray[np.float64]]


def robust(method: Method) -> Method:
    """The method whose updates all count the same, and which finishes what `combine` gives.
    ConfigError: it does not stand that.
    """
    if why := method.forbids.get("robust"):
        raise ConfigError(f"method {method.name} stands no robust rule: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        return map(counted, method.parts(state, plan, update))

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        return method.finish(grounded(state, total.sums), total, rng)

    return replace(method, parts=parts, finish=finish)


def needed(rule: str, f: int) -> int:
    """How many devices of a coordinate, or of a submodel, a rule needs to outlive f liars."""
    return {
        "trimmed": 2 * f + 1,
        "median": 2 * f + 1,
        "krum": 2 * f + 3,
        "multikrum": 2 * f + 3,
    }.get(rule, 1)


# ---- of one coordinate ---------------------------------------------------------------------------


def trimmed(ordered: Array, counts: NDArray[np.int64], f: int) -> NDArray[np.float64]:
    """ordered: [coordinates, devices], rising; counts: how many of each row are there, at its
    start. The mean without f at either end.
    """
    places = np.arange(ordered.shape[1])
    middle = (places >= f) & (places < (counts - f)[:, None])
    found: NDArray[np.float64] = ordered.sum(axis=1, where=middle, dtype=np.float64) / np.maximum(
        counts - 2 * f, 1
    )
    return found


def median(ordered: Array, counts: NDArray[np.int64], f: int) -> NDArray[np.float64]:
    """As `trimmed`; of an even number the mean of the two in the middle."""
    low, high = (
        np.take_along_axis(ordered, place[:, None], axis=1)[:, 0].astype(np.float64)
        for place in ((counts - 1) // 2, counts // 2)
    )
    return (low + high) / 2


def per_coordinate(kept: Kept, tensors: Tensors, f: int, centre: Centre) -> Total:
    """The centre of every coordinate that 2 f + 1 devices hold; a home of which there is none is
    left out.
    """
    total, few = Total(seen=dict(kept.seen)), 0
    for home, frame in kept.frame.sums.items():
        # old x count / count is old again, bit for bit
        value = torch.zeros(frame.value.shape, dtype=torch.float64)
        old, slots, enough = present(tensors, home, frame.value.shape), kept.slots(home), 0
        for band, weight in bands(frame):
            here = [(key, slot) for key, slot in slots if inside(band, slot.where)]
            for block in blocks(band, max(1, CELLS // len(here))):
                value[at(block)], held = settled(kept, here, block, old[at(block)], f, centre)
                enough += held
            value[at(band)] *= (
                weight.reshape(-1, *[1] * (value.dim() - 1))
                if isinstance(weight, Tensor)
                else weight
            )
        if enough:
            total.sums[home] = Sum(value, dict(frame.cover))
        few += old.numel() - enough
    if few:
        log.warning(
            "%d coordinates keep their old value: fewer than %d devices gave one", few, 2 * f + 1
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
    enough = counts >= 2 * f + 1
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


def selected(kept: Kept, tensors: Tensors, f: int, several: bool) -> Total:
    """The sum of the updates that Krum chooses in each group of equal submodels."""
    total = Total()
    for members in groups(kept):
        n = len(members)
        if n < 2 * f + 3:
            log.warning(
                "%d updates are left out: of their submodel Krum needs %d to outvote %d (%s)",
                n,
                2 * f + 3,
                f,
                ", ".join(map(name, members)),
            )
            continue
        chosen = nearest(distances(kept, tensors, members), f, n - f - 2 if several else 1)
        for key in (members[i] for i in chosen):
            fold(
                total,
                (replace(part, weight=part.weight * n / len(chosen)) for part in kept.parts(key)),
                key,
            )
    total.seen.clear()
    total.seen.update(kept.seen)
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
            base = old[at(block)].numpy().reshape(-1).astype(np.float64)
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


def shortened(kept: Kept, tensors: Tensors, f: int) -> Total:
    """The sum of all updates, none longer than the median of its group, of an even number the lower
    one: for a round before which nothing is known.

    Of two updates the mean of their lengths would be half of what a liar likes.
    """
    total = Total()
    for members in groups(kept):
        bound = statistics.median_low(length(kept.parts(key), tensors) for key in members)
        for key in members:
            fold(total, clipped(kept.parts(key), tensors, bound), key)
    return total


def name(key: Key) -> str:
    return str(key[0])


RULES: Mapping[str, Callable[[Kept, Tensors, int], Total]] = MappingProxyType(
    {
        "clip": shortened,
        "krum": lambda kept, tensors, f: selected(kept, tensors, f, several=False),
        "median": lambda kept, tensors, f: per_coordinate(kept, tensors, f, median),
        "multikrum": lambda kept, tensors, f: selected(kept, tensors, f, several=True),
        "trimmed": lambda kept, tensors, f: per_coordinate(kept, tensors, f, trimmed),
    }
)
"""What makes a total of the updates of a round; f: how many of them may be lies."""


def combine(kept: Kept, tensors: Tensors, rule: str, f: int) -> Total:
    """The total of which the mean is the rule's result. tensors: the state's, by home. OSError: the
    files cannot be read.
    """
    kept.newest()
    return RULES[rule](kept, tensors, f)
