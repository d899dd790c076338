"""What a robust rule is: a frozen record, and how a method and a round use it.

The mean follows one liar as far as it wants (Blanchard et al., arXiv 1703.02757, Lemma 3.1). A rule
looks at the updates beside each other instead, and up to f of them may be anything at all.

All updates count the same, as in the papers: weights by examples are claims, and with them one liar
could be the majority of a coordinate by itself. Each device counts once: if a late update of it
came into the same round, its last one does. A row that a device does not have (of a class that it
does not hold) is not covered by it.

What comes out is an ordinary `Total` of which the mean is the rule's result, so that every method's
`finish` works on as it does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from federated.engine.aggregate import Part, Total
from federated.engine.kept_parts import Kept
from federated.engine.update_norms import counted, grounded
from federated.errors import ConfigError
from federated.method import Method, State, Tensors
from federated.task import Update
from models.slicing import Plan

__all__ = ["Rule", "combine", "robust"]


@dataclass(frozen=True)
class Rule:
    """A robust rule.

    name: as `robust.rule` takes it.
    help: what it does, in one line of the table in SECURITY.md.
    compares: which updates it looks at beside each other: all that hold a coordinate, all of a
    submodel, or each update alone.
    needed: how many of these it needs to withstand f liars. What fewer hold stays as it is.
    clips: whether updates are added up as they come, each shortened to the norm that earlier rounds
    tell or `robust.clip` states. `combine` then serves rounds before any norm is known.
    Otherwise every update of a round is kept on disk until the round is over.
    combine: from the kept updates, the state's tensors by home and f, a total of which the mean is
    the result.
    """

    name: str
    help: str
    compares: Literal["coordinate", "submodel", "update"]
    needed: Callable[[int], int]
    clips: bool
    combine: Callable[[Kept, Tensors, int], Total]


def combine(rule: Rule, kept: Kept, tensors: Tensors, f: int) -> Total:
    """The total of which the mean is the rule's result; all updates are in it as seen, whether the
    rule used them or not.

    tensors: the state's, by home. f: how many devices may be liars. OSError: the files cannot be
    read.
    """
    kept.newest()
    total = rule.combine(kept, tensors, f)
    total.seen.clear()
    total.seen.update(kept.seen)
    return total


def robust(method: Method) -> Method:
    """The method with updates that all count the same, which finishes what `combine` returns.
    ConfigError: it forbids robust rules.
    """
    if why := method.forbids.get("robust"):
        raise ConfigError(f"method {method.name} cannot be used with a robust rule: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        return map(counted, method.parts(state, plan, update))

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        return method.finish(grounded(state, total.sums), total, rng)

    return replace(method, parts=parts, finish=finish)
