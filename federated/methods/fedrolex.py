"""FedRolex: small devices train a window of channels that moves by one channel each round (Alam et
al., Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, arXiv 2212.01548,
section 3.2, eq. 3).

Difference from HeteroFL: the kept channels are a window that moves by one channel each round and
wraps around, so that over time small devices train every weight. Of C channels, k kept, in round j
(from 0):

    author:  (i - j) mod C,  i < k    (the authors' code, which rolls the list of channels)
    paper:   (i + j) mod C,  i < k

All axes of one group of channels have the same C and k, and so the same window; where several
entries represent one channel, as after a flatten, they move together. Axes that width does not
shorten do not move. A submodel is scored and exported with the window of the next round.

`weighting` is uniform, as in HeteroFL and the paper. The authors' code multiplies all layers except
convolutions by counts of updates that it accumulates over the rounds, and divides by the sum of the
same counts. All devices of a round have the same count at a coordinate, so this is the plain mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods import fedavg
from federated.methods.heterofl import heterofl, own_recipe
from federated.task import Recipe
from models.slicing import Plan, Row
from models.submodel import Submodel
from models.submodel_building import pieces, shapes, statistics

__all__ = ["fedrolex"]

NARROWEST = 1e-6  # width that keeps one channel of every group

Piece = tuple[tuple[int, int], tuple[int, int]]
"""(start, stop) of a piece of a window on one axis, in the local tensor and in its home."""


def cut_window(kept: int, channels: int, start: int) -> tuple[Piece, ...]:
    """Return the window of `kept` channels from `start`, in two pieces if it wraps around."""
    first = min(kept, channels - start)
    whole = ((0, first), (start, start + first))
    return (whole,) if first == kept else (whole, ((first, kept), (0, kept - first)))


def roll_row(row: Row, wide: tuple[int, ...], unit: tuple[int, ...], turn: int) -> Iterator[Row]:
    """Yield the rows that take the place of a row of leading channels when the window has moved.

    wide: shape of the tensor at width 1
    unit: entries per axis that represent one channel
    turn: channels by which the window has moved
    """
    kept = tuple(stop for _, stop in row.here)
    axes = [
        cut_window(k, c, turn * u % c) if k < c else cut_window(k, k, 0)
        for k, c, u in zip(kept, wide, unit, strict=True)
    ]
    for several in itertools.product(*axes):
        yield replace(
            row, here=tuple(here for here, _ in several), there=tuple(there for _, there in several)
        )


def find_shapes(submodel: Submodel, width: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the same blocks at another width."""
    other = replace(submodel, width=width)
    return shapes(other) | statistics(other)


def place(state: State, submodel: Submodel) -> Plan:
    """Return the windows of this round."""
    wide, unit = find_shapes(submodel, 1.0), find_shapes(submodel, NARROWEST)
    turn = state.round if state.settings["direction"] == "paper" else -state.round
    plan = fedavg.place(state, submodel)
    return replace(
        plan,
        rows=tuple(
            piece
            for row in plan.rows
            for piece in roll_row(row, wide[row.local], unit[row.local], turn)
        ),
    )


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield a reason if no width is below 1. A single narrow size rolls as well."""
    if any(map(pieces, menu)):
        raise ConfigError(
            f"method fedrolex cannot use {menu[0].network.family}, whose channels are concatenated "
            "or form heads: use another method"
        )
    if all(submodel.width == 1 for submodel in menu):
        yield (
            f"widths {list(settings['widths'])} keep every channel, so the window does not roll: "
            "set method.widths to values below 1"
        )


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return HeteroFL's recipe. The weights of a narrow submodel are others in the next round."""
    return replace(own_recipe(state, submodel), feedback=submodel.width == 1)


def fedrolex() -> Method:
    base = heterofl()
    direction = Setting(
        "author",
        "direction of the window: backwards as in the authors' code, or forwards as in the paper",
        ("author", "paper"),
    )
    return replace(
        base,
        name="fedrolex",
        summary="HeteroFL with a window of channels that moves by one each round, so that all "
        "weights are trained evenly",
        paper="Alam et al., FedRolex, NeurIPS 2022 (arXiv 2212.01548)",
        # the kept state is of leading channels, not of windows
        settings=vary(base.settings, direction=direction, keep_optimiser=None),
        place=place,
        recipe=recipe,
        inactive=inactive,
    )
