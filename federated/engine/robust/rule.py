"""Define the record of a robust aggregation rule, and apply a rule to a method and a round.

One attacker can move a mean as far as it wants (Blanchard et al., arXiv 1703.02757, Lemma 3.1). A
rule compares the updates instead, up to f of which may be arbitrary.

All updates have the same weight, as in the papers: numbers of examples are claims, and with them
one attacker could be the majority of a coordinate. Each device counts once: if a late update of it
arrives in the same round, its last update counts. An update does not cover rows that its device
lacks (of classes that it does not hold).

A rule keeps nothing between rounds and has no settings but f, so it cannot start from the last
result or take a radius: derive these from the updates at hand.

The result is an ordinary `Total` with the rule's result as its mean, so that every method's
`finish` works unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from federated.engine.aggregate import Total
from federated.engine.update_contributions import Part
from federated.engine.update_norms import add_missing_homes, count_once
from federated.engine.update_part_files import PartStore
from federated.errors import ConfigError
from federated.method import Method, State, Tensors
from federated.task import Update
from models.slicing import Plan

__all__ = ["Rule", "combine", "make_robust"]


@dataclass(frozen=True)
class Rule:
    """A robust rule.

    name: value of `robust.rule`
    help: one line for the table in SECURITY.md
    compares: updates that it compares: all that hold a coordinate, all of a submodel, or each alone
    needed: number of these that it needs to withstand f attackers; values held by fewer do not
        change
    promises: what f attackers cannot change, which the tests check. "between": each value of the
        result lies between those of the honest devices that hold it. "near": no value moves farther
        from its old value than the longest honest update.
    combine: returns a total with the result as its mean, from the stored updates, the state's
        tensors by home, and f. `federated.engine.robust.arithmetic` has `per_coordinate` for rules
        that compare a coordinate, `per_submodel` for rules that weigh whole updates by their
        distances, and `groups` for rules that change the updates of a submodel, as
        `federated.engine.robust.clip` does. Values as large as 1e30 must not spoil the result.
    limits_norm: updates are shortened to `robust.clip`, or to the norm of earlier rounds, as they
        arrive; `combine` runs only while no norm is known. False: the updates of a round are kept
        on disk until it is over, and `robust.clip` is an error.
    """

    name: str
    help: str
    compares: Literal["coordinate", "submodel", "update"]
    needed: Callable[[int], int]
    promises: Literal["between", "near"]
    combine: Callable[[PartStore, Tensors, int], Total]
    limits_norm: bool = False


def combine(rule: Rule, kept: PartStore, tensors: Tensors, f: int) -> Total:
    """Return a total with the rule's result as its mean. All updates are in `seen`, used by the
    rule or not.

    tensors: the state's, by home
    f: number of devices that may be attackers
    OSError: the files cannot be read.
    """
    kept.keep_newest()
    total = rule.combine(kept, tensors, f)
    total.seen.clear()
    total.seen.update(kept.seen)
    return total


def make_robust(method: Method) -> Method:
    """Return the method as a robust rule needs it: every update has the same weight, and `finish`
    accepts a total of `combine`.

    ConfigError: the method does not support robust rules.
    """
    if why := method.forbids.get("robust"):
        raise ConfigError(f"method {method.name} does not support robust rules: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        return map(count_once, method.parts(state, plan, update))

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        return method.finish(add_missing_homes(state, total.sums), total, rng)

    return replace(method, parts=parts, finish=finish)
