"""List the submodels of NeFL (Kang, Cha, Shin, Lee and Kang, arXiv 2308.07761), from the published
tables for four ResNets or by a rule for every other network, and choose the one that a device
trains in a round.

A submodel keeps a fraction gamma = gamma_W x gamma_D of the parameters, gamma_W by narrower layers
and gamma_D by fewer blocks. The ratio of channels is sqrt(gamma_W), as in the authors' code, since
the parameters of a layer grow with the square of its channels.

Without a table, blocks are dropped from the ends of sections as long as each brings the number of
parameters closer to its goal: first from the section that has the largest fraction of its blocks
left, and the deepest of those. Only residual blocks can be dropped; the projection of a first block
stays.

In the paper (`tiers = "index"`), device i of N has tier t = min(i // (N / N_s), N_s - 1) of the N_s
submodels and draws from [t - 2, t + 2]. By default (`tiers = "measured"`), t is the largest
submodel that the device can afford, and the device follows a shuffled cycle of rounds: it trains
each of [t - 2, t] equally often, and all smaller ones together as often as one of these. If devices
drew from [t - 2, t] only, a fleet that can afford large submodels would never train the smallest
ones. Devices start at different places of the cycle, so two equal devices train all of five
submodels within four rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from federated.method import State
from models.submodel import Network, Submodel
from models.submodel_building import address, full, parameters, shapes

__all__ = ["FEATURES", "GAMMAS", "by_cycle", "by_index", "is_step", "sizes"]

FEATURES = ("steps",)
GAMMAS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the tables; the last row is the whole network

Row = tuple[float, str | tuple[int, ...]]
"""gamma_W, and the kept blocks: a mask by section, or the number of blocks kept at the front of
each section.
"""

PUBLISHED: Mapping[tuple[str, str], tuple[Row, ...]] = {
    # Tables XII to XVII; the second row of ResNet18 by depth is from the code, since only that row
    # gives the sizes that the paper prints
    ("18", "d"): (
        (1, "11 00 11 00"),
        (1, "11 11 00 10"),
        (1, "11 11 11 10"),
        (1, "10 11 00 11"),
    ),
    ("18", "wd"): (
        (0.34, "11 11 11 10"),
        (0.4, (2, 2, 2, 2)),
        (0.6, (2, 2, 2, 2)),
        (0.8, (2, 2, 2, 2)),
    ),
    ("34", "d"): (
        (1, (1, 1, 1, 1)),
        (1, "111 1111 110001 100"),
        (1, "111 1111 110001 101"),
        (1, "111 1001 110001 111"),
    ),
    ("34", "wd"): (
        (0.378296187, "111 1001 100001 101"),
        (0.625390289, "111 1001 111001 101"),
        (0.770943105, "111 1111 111101 101"),
        (0.899800797, "111 1111 111001 111"),
    ),
    ("56", "d"): ((1, (2, 2, 2)), (1, (3, 3, 4)), (1, (4, 4, 6)), (1, (9, 8, 7))),
    ("56", "wd"): (
        (0.464938491, (4, 4, 4)),
        (0.607811604, (6, 6, 6)),
        (0.777135864, (7, 7, 7)),
        (0.902901024, (8, 8, 8)),
    ),
    ("110", "d"): ((1, (16, 4, 3)), (1, (14, 7, 7)), (1, (17, 13, 10)), (1, (16, 16, 14))),
    ("110", "wd"): (
        (0.457252561, (8, 8, 8)),
        (0.603830987, (12, 12, 12)),
        (0.774235493, (14, 14, 14)),
        (0.901429773, (16, 16, 16)),
    ),
}


def is_step(name: str) -> bool:
    """Return True for the learnable step of a residual function."""
    return name.rpartition(".")[2] == "step"


@lru_cache(maxsize=64)
def sizes(network: Network, gammas: tuple[float, ...], scaling: str) -> tuple[Submodel, ...]:
    """Return one submodel per gamma, smallest first by parameters, without duplicates.

    scaling: "w", "d" or "wd"
    ValueError: the network has no steps.
    """
    whole = full(network, FEATURES)
    made = published_submodels(whole, scaling) if gammas == GAMMAS else ()
    return tuple(
        sorted(
            set(made or (scale_whole(whole, gamma, scaling) for gamma in gammas)),
            key=lambda s: (parameters(s), s.width, s.name),
        )
    )


def published_submodels(whole: Submodel, scaling: str) -> tuple[Submodel, ...]:
    """Return the submodels of the tables; empty without a table. A ResNet's blocks are the same
    behind each of its stems.
    """
    network, depths = whole.network, tuple(map(len, whole.mask))
    rows = (
        PUBLISHED.get((network.preset.partition("-")[0], scaling), ())
        if network.family == "resnet"
        else ()
    )
    made = tuple(
        replace(whole, width=math.sqrt(width), mask=make_mask(blocks, depths))
        for width, blocks in rows
    )
    return (*made, whole) if made else ()


def make_mask(
    blocks: str | tuple[int, ...], depths: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the mask of kept blocks by section."""
    if isinstance(blocks, str):
        return tuple(tuple(map(int, section)) for section in blocks.split())
    return tuple(
        (1,) * count + (0,) * (depth - count) for count, depth in zip(blocks, depths, strict=True)
    )


def scale_whole(whole: Submodel, gamma: float, scaling: str) -> Submodel:
    """Return a fraction gamma of the network: by width, by depth, or sqrt(gamma) by depth and the
    rest by width.
    """
    shallow = drop_blocks(whole, {"w": 1.0, "d": gamma, "wd": math.sqrt(gamma)}[scaling])
    if scaling == "d":
        return shallow
    return replace(
        shallow, width=math.sqrt(min(1.0, gamma * parameters(whole) / parameters(shallow)))
    )


def drop_blocks(whole: Submodel, share: float) -> Submodel:
    """Return the full-width submodel with about this fraction of the parameters; at least one block
    stays.
    """
    sizes, excess = removable_blocks(whole), (1 - share) * parameters(whole)
    depths = [len(section) for section in whole.mask]
    while sum(depths) > 1:
        ends = [
            (s, n - 1)
            for s, n in enumerate(depths)
            if (s, n - 1) in sizes and abs(excess - sizes[s, n - 1]) < abs(excess)
        ]
        if not ends:
            break
        section, block = max(
            ends, key=lambda end: (depths[end[0]] / len(whole.mask[end[0]]), end[0])
        )
        excess -= sizes[section, block]
        depths[section] = block
    return replace(whole, mask=make_mask(tuple(depths), tuple(map(len, whole.mask))))


def removable_blocks(whole: Submodel) -> dict[tuple[int, int], int]:
    """Return the parameters of every block that can be dropped, by section and block."""
    left, found = shapes(without_residual_blocks(whole)), dict[tuple[int, int], int]()
    for name, shape in shapes(whole).items():
        place = address(whole.network, name)
        if place is not None and name not in left:
            found[place[:2]] = found.get(place[:2], 0) + math.prod(shape)
    return found


def without_residual_blocks(whole: Submodel) -> Submodel:
    """Return the network without residual blocks, or with the first one of each section if the
    family needs it.
    """
    residual = {
        place[:2]
        for name in shapes(whole)
        if is_step(name) and (place := address(whole.network, name)) is not None
    }
    none, first = (
        replace(
            whole,
            mask=tuple(
                tuple(int((s, b) not in residual or b < least) for b in range(len(m)))
                for s, m in enumerate(whole.mask)
            ),
        )
        for least in (0, 1)
    )
    try:
        shapes(none)
    except ValueError:
        return first
    return none


def by_index(
    state: State,
    place: int,
    affordable: Sequence[Submodel],
    rng: np.random.Generator,
) -> Submodel:
    """Return a submodel of the device's tier or near it, or the largest that it can afford if it
    can afford none of these.

    place: index of the device among the sorted names of present devices
    """
    flex: int = state.settings["flex"]
    tier = min(place * len(state.menu) // len(state.agents), len(state.menu) - 1)
    near = state.menu[max(0, tier - flex) : tier + flex + 1]
    able = [submodel for submodel in affordable if submodel in near]
    able = able or [max(affordable, key=parameters)]
    return able[int(rng.integers(len(able)))]


def by_cycle(
    state: State, place: int | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the submodel of this round in a cycle of all submodels that the device can afford.

    place: as in `by_index`; without one, draw a round of the cycle
    """
    flex: int = state.settings["flex"]
    able = sorted(affordable, key=lambda submodel: (parameters(submodel), submodel.name))
    smaller, near = able[: -1 - flex], able[-1 - flex :]
    cycle = [*smaller, *(near * max(1, len(smaller)))]
    if place is None:
        return cycle[int(rng.integers(len(cycle)))]
    number, step = divmod(state.round, len(cycle))
    order = np.random.default_rng([state.settings["seed"] & 0xFFFFFFFF, number]).permutation(
        len(cycle)
    )
    return cycle[int(order[(step + place * len(cycle) // len(state.agents)) % len(cycle)])]
