"""Checks of an update against what its agent said of its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.trust.update_checks import check_report, limit_claims
from federated.errors import Refused
from federated.task import Card, Recipe, Task, Update, Work
from models.menu import menu
from models.named_network import network
from models.submodel_building import statistics

SUBMODEL = menu(network("mlp", (4,), 3), (1.0,), (1,))[0]
TASK = Task("r", 1, 1, "a", "train", SUBMODEL, "r0", "0" * 64, 100, Recipe(), 60.0)
CARD = Card("d", (4,), "float32", 3, 100, 20, (0.0,), (1.0,))
TALLY = {"count": [20.0], "loss": [1.0], "right": [2.0]}


def check(work: Work, samples: int, card: Card | None = CARD, **notes: Any) -> None:
    found = {name: np.zeros(shape, np.float32) for name, shape in statistics(SUBMODEL).items()}
    tensors = found if work == "calibrate" else {}
    update = Update("r", 1, 1, "a", work, SUBMODEL, "r0", samples, 1, tensors, notes)
    check_report(replace(TASK, work=work), update, card)


def test_an_agent_counts_as_many_examples_as_it_said_that_it_has() -> None:
    check("evaluate", 20, tallies={"all": TALLY})
    check("calibrate", 100, batches=4)
    check("train", 100, loss=1.0, tallies={"before": TALLY})


@pytest.mark.parametrize(
    ("work", "samples", "notes"),
    [
        ("evaluate", 21, {"tallies": {"all": TALLY}}),
        ("evaluate", 20, {"tallies": {"all": {**TALLY, "count": [21.0]}}}),
        ("train", 100, {"loss": 1.0, "tallies": {"after": {**TALLY, "count": [2.0**40]}}}),
        ("calibrate", 101, {"batches": 4}),
    ],
)
def test_an_agent_that_counts_more_is_refused(
    work: Work, samples: int, notes: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match="profile"):
        check(work, samples, **notes)


def test_an_agent_that_described_no_data_is_refused() -> None:
    with pytest.raises(Refused):
        check("evaluate", 1, None, tallies={"all": {**TALLY, "count": [1.0], "right": [0.0]}})


def test_a_text_with_an_answer_per_token_counts_its_tokens() -> None:
    text = menu(network("transformer", (8,), 30, target="token"), (1.0,), (1,))[0]
    tally = {"count": [160.0], "loss": [1.0], "right": [2.0]}
    update = Update("r", 1, 1, "a", "evaluate", text, "r0", 20, 0, {}, {"tallies": {"all": tally}})
    task = replace(TASK, work="evaluate", submodel=text)
    check_report(task, update, CARD)
    more = replace(update, notes={"tallies": {"all": {**tally, "count": [161.0]}}})
    with pytest.raises(Refused, match="160"):
        check_report(task, more, CARD)


def test_an_update_counts_with_no_more_steps_than_its_limited_examples_take() -> None:
    """FedNova multiplies the mean change by the mean number of steps."""
    update = Update("r", 1, 1, "a", "train", SUBMODEL, "r0", 2**39, 2**34, {})
    recipe = Recipe(batch=32, epochs=2)
    found = limit_claims(update, recipe, 320)
    assert (found.samples, found.steps) == (320, 20)
    assert limit_claims(update, recipe, 0) is update
    assert limit_claims(update, recipe, 2**39) is update
    few = replace(update, samples=320)
    assert limit_claims(few, recipe, 320).steps == limit_claims(few, recipe, 0).steps == 20
