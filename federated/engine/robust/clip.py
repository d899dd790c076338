"""Clipping: the mean of updates, each shortened to a norm; its direction stays.

The norm is `robust.clip`, or the median of the submodel's updates in earlier rounds. In a round
before which nothing is known, it is the median of the round's own updates.
"""

from __future__ import annotations

import statistics

from federated.engine.aggregate import Total, fold
from federated.engine.kept_parts import Kept
from federated.engine.robust.arithmetic import groups
from federated.engine.robust.rule import Rule
from federated.engine.update_norms import clipped, length
from federated.method import Tensors

__all__ = ["CLIP"]


def shortened(kept: Kept, tensors: Tensors, f: int) -> Total:
    """The sum of all updates, none longer than the median of its group; of an even number, the
    lower of the two in the middle. Of two updates, their mean would be half of what a liar likes.
    """
    total = Total()
    for members in groups(kept):
        bound = statistics.median_low(length(kept.parts(key), tensors) for key in members)
        for key in members:
            fold(total, clipped(kept.parts(key), tensors, bound), key)
    return total


CLIP = Rule(
    name="clip",
    help="the mean of the updates, each shortened to a norm",
    compares="update",
    needed=lambda f: 1,
    clips=True,
    combine=shortened,
)
