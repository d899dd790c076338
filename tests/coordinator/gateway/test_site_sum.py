"""The update of a site, when one of its devices claims what it likes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.gateway.site_sum import SiteSum
from coordinator.round.task_state import TaskState
from coordinator.trust.message_checks import check_scores, check_training
from federated.errors import Refused
from federated.task import Card, Recipe, Task, Update, Work
from federated.wire import tensors
from models.menu import menu
from models.named_network import network
from models.submodel_building import statistics
from tests.support.small_run_defences import defences

(SUBMODEL,) = menu(network("preresnet", (1, 8, 8), 10), (0.5,), (1,))
TASK = Task("r", 1, 1, "site", "train", SUBMODEL, "r0", "0" * 64, 100, Recipe(), 60.0)
TALLIES = {"all": {"count": [5.0], "loss": [1.0], "right": [2.0]}}
EXAMPLES = 64


def start(
    folder: Path, examples: Mapping[str, int], work: Work = "train", held_out: int = 5
) -> SiteSum:
    """Return the sum of a site whose devices claim these numbers of examples."""
    weights = folder / "weights"
    weights.write_bytes(bytes(tensors.encode({}, {"w": np.zeros(2, np.float32)})))
    cards = {name: make_card(count, held_out) for name, count in examples.items()}
    return SiteSum(replace(TASK, work=work), cards, weights, defences(folder))


def make_card(examples: int, held_out: int) -> Card:
    return Card("d", (1, 8, 8), "float32", 10, examples, held_out, (0.0,), (1.0,))


def deliver(
    site: SiteSum,
    agent: str,
    work: Work,
    samples: int,
    value: float,
    notes: Mapping[str, Any],
    steps: int = 1,
) -> None:
    """Check and fold the update of a device, as a round does."""
    task = replace(TASK, agent=agent, work=work)
    found = {
        "train": {"w": np.full(2, value, np.float32)},
        "calibrate": {
            name: np.full(shape, value, np.float32) for name, shape in statistics(SUBMODEL).items()
        },
        "evaluate": {},
    }[work]
    update = Update("r", 1, 1, agent, work, SUBMODEL, "r0", samples, steps, found, notes)
    site.check(task, update, math.inf)
    site.fold(TaskState(task, 0, 0.0), update)


@pytest.mark.parametrize("claim", [10**9, -1, "many"])
def test_notes_of_another_task_have_no_effect(tmp_path: Path, claim: object) -> None:
    """Only statistics are weighted by batches; the notes of others are not checked for them."""
    site = start(tmp_path, {"a": EXAMPLES, "liar": EXAMPLES})
    deliver(site, "a", "train", EXAMPLES, 1.0, {"loss": 1.0})
    deliver(site, "liar", "train", EXAMPLES, 2.0, {"loss": 1.0, "batches": claim})
    found = site.make_update()
    assert (found.samples, found.notes["loss"]) == (2 * EXAMPLES, 1.0)
    np.testing.assert_array_equal(found.tensors["w"], [1.5, 1.5])


@pytest.mark.parametrize("work", ["evaluate", "calibrate"])
def test_notes_of_a_training_are_not_read_from_other_work(tmp_path: Path, work: Work) -> None:
    site = start(tmp_path, {"liar": EXAMPLES}, work)
    wrong = {"loss": "low", "labels": [[1]], "tallies" if work == "calibrate" else "batches": 7}
    right = {"batches": 2} if work == "calibrate" else {"tallies": TALLIES}
    deliver(site, "liar", work, 5, 0.5, {**wrong, **right})
    assert site.make_update().notes == right


def test_a_device_counts_with_at_most_ten_times_the_median_of_the_examples(tmp_path: Path) -> None:
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 2**40 - 1})
    for agent, samples, value in (("a", 10, 0.0), ("b", 10, 0.0), ("liar", 2**40 - 1, 6.0)):
        deliver(site, agent, "train", samples, value, {"loss": 1.0})
    found = site.make_update()
    assert found.samples == 120
    np.testing.assert_allclose(found.tensors["w"], 5.0)


def test_a_device_counts_with_at_most_as_many_batches(tmp_path: Path) -> None:
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 2**39}, "calibrate")
    for agent, batches in (("a", 10), ("b", 10), ("liar", 2**39)):
        deliver(site, agent, "calibrate", max(10, batches), 0.1, {"batches": batches})
    found = site.make_update()
    assert (found.samples, found.notes) == (120, {"batches": 120})


def make_tally(count: float) -> dict[str, Any]:
    return {"count": [count], "loss": [count], "right": [0.0]}


@pytest.mark.parametrize(("work", "view"), [("evaluate", "all"), ("train", "after")])
def test_a_device_cannot_claim_more_answers_than_it_has_held_out(
    tmp_path: Path, work: Work, view: str
) -> None:
    site = start(tmp_path, {"a": EXAMPLES, "liar": EXAMPLES}, work)
    notes = {"loss": 1.0, "tallies": {view: make_tally(2.0**40)}}
    with pytest.raises(Refused, match="held out"):
        deliver(site, "liar", work, 5, 1.0, notes)


def test_scores_of_a_device_count_with_at_most_ten_times_the_median_held_out(
    tmp_path: Path,
) -> None:
    """The liar's profile claims as many held-out examples as its tally."""
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 2**39}, "evaluate", 4)
    site._cards = {**site._cards, "liar": make_card(2**39, 2**39)}
    for agent, count in (("a", 4), ("b", 4), ("liar", 2**39)):
        deliver(site, agent, "evaluate", count, 1.0, {"tallies": {"all": make_tally(count)}})
    found = site.make_update()
    assert (found.samples, found.notes["tallies"]["all"]["count"]) == (48, [48])


def test_huge_sums_of_two_devices_stay_within_what_the_coordinator_accepts(tmp_path: Path) -> None:
    site = start(tmp_path, {"a": EXAMPLES, "b": EXAMPLES}, "evaluate")
    for agent in ("a", "b"):
        tally = {**make_tally(5.0), "loss": [1e100]}
        deliver(site, agent, "evaluate", 5, 1.0, {"tallies": {"all": tally}})
    check_scores(site.make_update())


def test_a_device_that_leaves_out_scores_does_not_hide_those_of_the_others(tmp_path: Path) -> None:
    site = start(tmp_path, dict.fromkeys("abc", EXAMPLES))
    for agent in "ab":
        notes = {"loss": 1.0, "tallies": {"before": make_tally(5.0)}}
        deliver(site, agent, "train", EXAMPLES, 1.0, notes)
    deliver(site, "c", "train", EXAMPLES, 1.0, {"loss": 1.0})
    assert site.make_update().notes["tallies"]["before"]["count"] == [10.0]


def test_steps_of_a_device_that_claims_many_examples_do_not_spoil_the_sites_update(
    tmp_path: Path,
) -> None:
    """The coordinator refuses more steps than the examples of the gateway's profile take."""
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 2**39})
    for agent, samples, steps in (("a", 10, 1), ("b", 10, 1), ("liar", 2**39, 2**34)):
        deliver(site, agent, "train", samples, 1.0, {"loss": 1.0}, steps)
    found = site.make_update()
    assert (found.samples, found.steps) == (120, 4)
    check_training(found, 120, 4)


def test_a_device_whose_update_moves_much_further_than_earlier_ones_is_refused(
    tmp_path: Path,
) -> None:
    """As with `robust.bound` at the coordinator: in the mean of many devices it would not show."""
    guard = defences(tmp_path, robust__bound=10.0)
    for number in (1, 2):
        guard.write()
        guard.begin(number, (SUBMODEL,))
        site = start(tmp_path, dict.fromkeys("abcde", EXAMPLES))
        site._defences = guard
        for agent in "abcd":
            deliver(site, agent, "train", EXAMPLES, 0.1, {"loss": 1.0})
        deliver(site, "e", "train", EXAMPLES, 0.9, {"loss": 1.0})
    with pytest.raises(Refused, match="expected a change of weights"):
        deliver(site, "e", "train", EXAMPLES, 1.1, {"loss": 1.0})


def test_a_device_may_have_trained_before_the_gateway_was_killed_and_restarted(
    tmp_path: Path,
) -> None:
    site, task = start(tmp_path, {"a": EXAMPLES}), replace(TASK, agent="a")
    found, notes = {"w": np.zeros(2, np.float32)}, {"loss": 1.0, "seconds": 60.0, "step": 1.0}
    update = Update("r", 1, 1, "a", "train", SUBMODEL, "r0", EXAMPLES, 2, found, notes)
    site.check(task, update, 0.5)
