"""FedRolex: Alam et al., Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction
(arXiv 2212.01548, section 3.2, eq. 3).

Against HeteroFL: the kept channels are no leading ones but a window that moves by one channel each
round and wraps around, so that in time every weight is trained by small devices too. Of C channels,
k kept, round j (from 0) has

    author:  (i - j) mod C,  i < k    (the authors' code, which rolls the list of channels)
    paper:   (i + j) mod C,  i < k

All axes of one group of channels have the same C and k, hence the same window; where several
entries stand for one channel, as after a flatten, they move together. An axis that width leaves
whole stays, and so does one that depth alone shortens. A submodel is scored and exported by the
window of the round to come.

`weighting` is HeteroFL's, uniform. The authors' code multiplies by counts of updates that it
accumulates over the rounds, in all layers but convolutions; what the paper writes is the mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Setting, Settings, State, varied
from federated.methods import fedavg
from federated.methods.heterofl import heterofl
from models.families.catalogue import shapes, statistics
from models.slicing import Plan, Row
from models.submodel import Submodel

__all__ = ["fedrolex"]

NARROWEST = 1e-6  # a width that keeps one channel of every group

Arc = tuple[tuple[int, int], tuple[int, int]]
"""Of one axis, (start, stop) in the local tensor and in its home."""


def arcs(kept: int, channels: int, start: int) -> tuple[Arc, ...]:
    """The window of `kept` channels from `start` on, in two pieces where it wraps around."""
    first = min(kept, channels - start)
    whole = ((0, first), (start, start + first))
    return (whole,) if first == kept else (whole, ((first, kept), (0, kept - first)))


def rolled(row: Row, wide: tuple[int, ...], unit: tuple[int, ...], turn: int) -> Iterator[Row]:
    """A row of corners as rows of windows. wide: the tensor's shape at width 1. unit: entries per
    axis that stand for one channel.
    """
    kept = tuple(stop for _, stop in row.here)
    axes = [
        arcs(k, c, turn * u % c) if k < c else arcs(k, k, 0)
        for k, c, u in zip(kept, wide, unit, strict=True)
    ]
    for pieces in itertools.product(*axes):
        yield replace(
            row, here=tuple(here for here, _ in pieces), there=tuple(there for _, there in pieces)
        )


def tensors(submodel: Submodel, width: float) -> dict[str, tuple[int, ...]]:
    """Shapes of the same blocks at another width."""
    other = replace(submodel, width=width)
    return shapes(other) | statistics(other)


def place(state: State, submodel: Submodel) -> Plan:
    wide, unit = tensors(submodel, 1.0), tensors(submodel, NARROWEST)
    turn = state.round if state.settings["direction"] == "paper" else -state.round
    plan = fedavg.place(state, submodel)
    return replace(
        plan,
        rows=tuple(
            piece
            for row in plan.rows
            for piece in rolled(row, wide[row.local], unit[row.local], turn)
        ),
    )


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """A single narrow size rolls as well: what it needs is a width below 1."""
    if all(submodel.width == 1 for submodel in menu):
        yield (
            f"widths {list(settings['widths'])} keep every channel, so the window does not roll: "
            "set method.widths to values below 1"
        )


def fedrolex() -> Method:
    base = heterofl()
    direction = Setting(
        "author",
        "which way the window rolls: backwards as in the authors' code, or forwards as "
        "in the paper",
        ("author", "paper"),
    )
    return replace(
        base,
        name="fedrolex",
        summary="HeteroFL with a window of channels that rolls on by one each round, so that all "
        "weights are trained evenly",
        paper="Alam et al., FedRolex, NeurIPS 2022 (arXiv 2212.01548)",
        settings=varied(base.settings, direction=direction),
        place=place,
        inactive=inactive,
    )
