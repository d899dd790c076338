"""Clipping: average all updates, after shortening each to at most a given norm.

The norm is `robust.clip`, or the median of the submodel's updates in earlier rounds. In a first
round it is the median of the round's own updates. Attackers who sent half of a submodel's updates
could choose their median, so it counts only up to the median over all submodels.
"""

from __future__ import annotations

import statistics

from federated.engine.aggregate import Total, fold
from federated.engine.robust.arithmetic import groups, majority
from federated.engine.robust.rule import Rule
from federated.engine.update_norms import change_norm, clip_parts
from federated.engine.update_part_files import PartStore
from federated.method import Tensors

__all__ = ["CLIP"]


def combine_clipped(kept: PartStore, tensors: Tensors, f: int) -> Total:
    """Return the sum of all updates, each shortened to the median norm of its group, and in a group
    of fewer than 2 f + 1 also to that of all updates. With an even number, that is the lower of the
    two middle norms: an attacker could set half of the mean of two.
    """
    total = Total()
    norms = {key: change_norm(kept.parts(key), tensors) for key in kept.counting}
    common = statistics.median_low(norms.values()) if norms else 0.0
    for members in groups(kept):
        bound = statistics.median_low(norms[key] for key in members)
        if len(members) < majority(f):
            bound = min(bound, common)
        for key in members:
            fold(total, clip_parts(kept.parts(key), tensors, bound), key)
    return total


CLIP = Rule(
    name="clip",
    help="the mean of the updates, each clipped to a norm",
    compares="update",
    needed=lambda f: 1,
    promises="near",
    combine=combine_clipped,
    limits_norm=True,
)
