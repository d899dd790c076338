"""Updates, statistics and scores with implausible numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.trust.message_checks import check_scores, check_statistics, check_training
from coordinator.trust.tensor_checks import check_weights
from federated.errors import Refused
from federated.task import Update
from models.submodel_building import shapes, statistics
from tests.support.scripted_agent import weights
from tests.support.scripted_coordinator import SMALL


def test_updates_of_implausible_size_are_refused() -> None:
    made = Update(
        "r", 1, 1, "a", "train", SMALL, "r0", 10, 1, weights(1.0), {"labels": [1], "loss": 1.0}
    )
    norms = {name: float(np.sqrt(np.prod(shape))) for name, shape in shapes(SMALL).items()}

    def judge(update: Update) -> None:
        check_weights(update, shapes(SMALL), norms)
        check_training(update, 10, 5)

    judge(made)
    for wrong, words in (
        (replace(made, tensors=weights(3e38)), "norm"),
        (replace(made, samples=11), "samples"),
        (replace(made, samples=2**70), "samples"),
        (replace(made, steps=2**70), "step"),
        (replace(made, notes={"labels": [1], "loss": "abc"}), "loss"),
        (replace(made, notes={"labels": [10], "loss": 1.0}), "labels"),
    ):
        with pytest.raises(Refused, match=words):
            judge(wrong)


def test_statistics_and_scores_are_checked() -> None:
    values = {name: np.ones(shape, np.float32) for name, shape in statistics(SMALL).items()}
    made = Update("r", 1, 1, "a", "calibrate", SMALL, "r0", 10, 0, values, {"batches": 2})
    check_statistics(made)
    for wrong in (
        replace(made, notes={"batches": 10**9}),
        replace(made, notes={"batches": True}),
        replace(made, tensors={**values, next(iter(values)): next(iter(values.values())) * 1e30}),
        replace(made, tensors={name: -value for name, value in values.items()}),
    ):
        with pytest.raises(Refused):
            check_statistics(wrong)
    good = {"count": [10], "loss": [5.0], "right": [7]}
    scored = Update(
        "r",
        1,
        1,
        "a",
        "evaluate",
        SMALL,
        "r0",
        10,
        0,
        {},
        {"tallies": {"all": good, "labels": good}},
    )
    check_scores(scored)
    check_scores(
        replace(
            scored,
            notes={
                "tallies": {
                    "all": good
                    | dict.fromkeys(("hits", "guessed", "true"), [1.0] * SMALL.network.outputs)
                }
            },
        )
    )
    wrong_tallies = [
        {**good, "right": [11]},
        {**good, "right": [-1]},
        {**good, "loss": [math.inf]},
        {"count": [10], "loss": [5.0]},
    ]
    wrong_tallies += [
        {**good, "count": [True]},
        {**good, "hits": [1.0]},
        {**good, "count": 10},
        {},
        [],
        {**good, "count": [10, 1]},
    ]
    for notes in [
        *({"tallies": {"all": tally}} for tally in wrong_tallies),
        {"tallies": {"every": good}},
        {"tallies": {"labels": good}},
        {},
    ]:
        with pytest.raises(Refused):
            check_scores(replace(scored, notes=notes))
